// How the user stops a run.

#pragma once

#include "base/clock.h"

namespace normd::load {

// Reports when the user wants to stop.
class Interrupts {
 public:
  virtual ~Interrupts() = default;
  // Waits for at most `limit`; true: stop sending and report. Called by one thread.
  virtual bool Wait(Duration limit) = 0;
};

}  // namespace normd::load

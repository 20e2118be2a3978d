// How the user stops a run.

#ifndef NORMD_CLIENT_NORMLOAD_INTERRUPTS_H_
#define NORMD_CLIENT_NORMLOAD_INTERRUPTS_H_

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

#endif  // NORMD_CLIENT_NORMLOAD_INTERRUPTS_H_

// Time for a load run: a clock, and waiting on it. Tests supply one that advances by itself.

#ifndef NORMD_CLIENT_LOAD_PACER_H_
#define NORMD_CLIENT_LOAD_PACER_H_

#include "base/clock.h"
#include "base/mutex.h"

namespace normd::load {

class Pacer : public Clock {
 public:
  // Returns at `until`, after a Wake, or spuriously: callers wait in a loop. One thread waits at a
  // time.
  virtual void WaitUntil(TimePoint until) = 0;
  // Ends the current wait, or else the next one. Thread-safe.
  virtual void Wake() = 0;
};

// The steady clock.
class SteadyPacer final : public Pacer {
 public:
  TimePoint Now() const override { return clock_.Now(); }
  void WaitUntil(TimePoint until) override;
  void Wake() override;

 private:
  const SteadyClock clock_{};
  Mutex mutex_;
  CondVar woken_up_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

// Lets the calling thread wake from timed waits within microseconds of their time; the kernel's
// default is up to 50 us late. No effect where the system has no such setting.
void AskForPreciseWakeups();

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_PACER_H_

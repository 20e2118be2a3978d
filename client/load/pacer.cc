#include "client/load/pacer.h"

#include <sys/prctl.h>

namespace normd::load {

void SteadyPacer::WaitUntil(TimePoint until) {
  MutexLock lock(mutex_);
  while (!woken_ && clock_.Now() < until) woken_up_.WaitUntil(mutex_, until);
  woken_ = false;
}

void SteadyPacer::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  woken_up_.SignalAll();
}

void AskForPreciseWakeups() { ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

}  // namespace normd::load

#include "base/periodic_thread.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

namespace normd {

PeriodicThread::PeriodicThread(const char* name, Duration period, std::function<void()> work)
    : period_(period), work_(std::move(work)), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

PeriodicThread::~PeriodicThread() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    ended_.SignalAll();
  }
  thread_.join();
}

void PeriodicThread::Loop() {
  const SteadyClock clock;
  TimePoint next = clock.Now();
  for (;;) {
    try {
      work_();
    } catch (const std::bad_alloc&) {
      // The next time may find memory.
    }
    // Late work does not put off what follows, and what was missed is not made up for.
    next = std::max(next + period_, clock.Now());
    MutexLock lock(mutex_);
    while (!ending_ && clock.Now() < next) ended_.WaitUntil(mutex_, next);
    if (ending_) return;
  }
}

}  // namespace normd

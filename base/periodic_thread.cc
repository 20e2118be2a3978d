#include "base/periodic_thread.h"

#include <pthread.h>

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
  for (;;) {
    work_();
    const TimePoint next = clock.Now() + period_;
    MutexLock lock(mutex_);
    while (!ending_ && clock.Now() < next) ended_.WaitUntil(mutex_, next);
    if (ending_) return;
  }
}

}  // namespace normd

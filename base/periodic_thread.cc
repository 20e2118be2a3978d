#include "base/periodic_thread.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

namespace normd {

PeriodicThread::PeriodicThread(const char* name, Duration period, std::function<void()> work,
                               Duration least)
    : period_(period), work_(std::move(work)), least_(least), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

PeriodicThread::~PeriodicThread() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void PeriodicThread::Hurry() {
  MutexLock lock(mutex_);
  hurried_ = true;
  changed_.SignalAll();
}

void PeriodicThread::Loop() {
  const SteadyClock clock;
  TimePoint next = clock.Now();
  for (;;) {
    const TimePoint least = clock.Now() + least_;
    try {
      work_();
    } catch (const std::bad_alloc&) {
      // The next time may find memory.
    }
    // Late work does not put off what follows, and what was missed is not made up for.
    next = std::max(next + period_, clock.Now());
    MutexLock lock(mutex_);
    while (!ending_ && clock.Now() < (hurried_ ? least : next)) {
      changed_.WaitUntil(mutex_, hurried_ ? least : next);
    }
    if (ending_) return;
    if (std::exchange(hurried_, false)) next = clock.Now();
  }
}

}  // namespace normd

#include "server/identity/access_watch.h"

#include <pthread.h>

namespace normd {

AccessWatch::AccessWatch(Access& access, Duration period)
    : access_(access), period_(period), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "policy");
}

AccessWatch::~AccessWatch() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    ended_.SignalAll();
  }
  thread_.join();
}

void AccessWatch::Loop() {
  for (;;) {
    {
      const TimePoint until = std::chrono::steady_clock::now() + period_;
      MutexLock lock(mutex_);
      while (!ending_ && std::chrono::steady_clock::now() < until) ended_.WaitUntil(mutex_, until);
      if (ending_) return;
    }
    access_.CheckFiles().IgnoreError();  // It logs what is wrong.
  }
}

}  // namespace normd

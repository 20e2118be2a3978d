// How many threads may do something at once.

#ifndef NORMD_SERVER_EXEC_TURNSTILE_H_
#define NORMD_SERVER_EXEC_TURNSTILE_H_

#include "base/mutex.h"

namespace normd {

// Thread-safe.
class Turnstile {
 public:
  explicit Turnstile(int places) : free_(places) {}
  Turnstile(const Turnstile&) = delete;
  Turnstile& operator=(const Turnstile&) = delete;

  // Waits for a free place and takes it.
  void Enter() {
    MutexLock lock(mutex_);
    while (free_ == 0) left_.Wait(mutex_);
    --free_;
  }
  void Leave() {
    {
      MutexLock lock(mutex_);
      ++free_;
    }
    left_.SignalOne();
  }

 private:
  Mutex mutex_;
  CondVar left_;
  int free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_TURNSTILE_H_

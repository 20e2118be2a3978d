// A counting semaphore. The standard library's may lose a wake-up in g++ 12 (GCC bug 98033).

#ifndef NORMD_SERVER_EXEC_SEMAPHORE_H_
#define NORMD_SERVER_EXEC_SEMAPHORE_H_

#include "base/mutex.h"

namespace normd {

// Thread-safe.
class Semaphore {
 public:
  explicit Semaphore(int count) : count_(count) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Waits until the count is positive, and takes one from it.
  void Acquire() {
    MutexLock lock(mutex_);
    while (count_ == 0) released_.Wait(mutex_);
    --count_;
  }
  void Release() {
    {
      MutexLock lock(mutex_);
      ++count_;
    }
    released_.SignalOne();
  }

 private:
  Mutex mutex_;
  CondVar released_;
  int count_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_SEMAPHORE_H_

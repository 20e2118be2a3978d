// One thread for work that is due again and again, and that may block.

#ifndef NORMD_BASE_PERIODIC_THREAD_H_
#define NORMD_BASE_PERIODIC_THREAD_H_

#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace normd {

// Begins at once. The destructor waits for work in progress.
class PeriodicThread {
 public:
  // `name`: at most 15 characters, shown by the system for the thread. `work` begins once in each
  // `period`, or follows at once if it takes longer, and must not throw.
  PeriodicThread(const char* name, Duration period, std::function<void()> work);
  ~PeriodicThread();
  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;

 private:
  void Loop();

  const Duration period_;
  const std::function<void()> work_;
  Mutex mutex_;
  CondVar ended_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_BASE_PERIODIC_THREAD_H_

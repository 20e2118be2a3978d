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
  // `period`, or follows at once if it takes longer. It may throw only std::bad_alloc: it ends
  // there until its next time, and nobody is told. After Hurry it begins as soon as `least` has
  // passed since it last began.
  PeriodicThread(const char* name, Duration period, std::function<void()> work,
                 Duration least = Duration(0));
  ~PeriodicThread();
  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;

  // Makes the work begin before its time. Thread-safe; does not block.
  void Hurry();

 private:
  void Loop();

  const Duration period_;
  const std::function<void()> work_;
  const Duration least_;
  Mutex mutex_;
  CondVar changed_;
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_BASE_PERIODIC_THREAD_H_

// One thread for work that may block, so that the threads that submit it never wait.

#ifndef NORMD_BASE_TASK_THREAD_H_
#define NORMD_BASE_TASK_THREAD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace normd {

// How long a background thread pauses after it was busy, so that it takes at most a quarter of a
// core.
inline Duration PauseAfter(Duration busy) { return 3 * busy; }

// Runs tasks one after the other. Thread-safe. The destructor runs all accepted tasks.
class TaskThread {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // `name`: at most 15 characters, shown by the system for the thread.
  TaskThread(const char* name, std::size_t max_waiting);
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  using Ticket = std::uint64_t;  // From 1.

  // Returns 0 and drops `task` when `max_waiting` tasks already wait. A task may throw only
  // std::bad_alloc: it ends there, the next one runs, and nobody is told.
  Ticket Submit(Task task);
  // True: the task was still waiting and will not run. False: it has begun or is done.
  bool Withdraw(Ticket ticket);

  // Called by a task: the next one begins after `duration`, or when the thread ends.
  void Pause(Duration duration);

 private:
  void Loop();

  const std::size_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  Ticket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<Ticket, Task>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint next_ ABSL_GUARDED_BY(mutex_){};  // When the next task may begin, on the steady clock.
  std::thread thread_;                        // Last: it uses all of the above.
};

}  // namespace normd

#endif  // NORMD_BASE_TASK_THREAD_H_

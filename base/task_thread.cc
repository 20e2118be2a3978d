#include "base/task_thread.h"

#include <pthread.h>

#include <algorithm>
#include <new>

namespace normd {

TaskThread::TaskThread(const char* name, std::size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

TaskThread::~TaskThread() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalOne();
  }
  thread_.join();
}

TaskThread::Ticket TaskThread::Submit(Task task) {
  MutexLock lock(mutex_);
  if (waiting_.size() >= max_waiting_) return 0;
  waiting_.emplace_back(++last_ticket_, std::move(task));
  changed_.SignalOne();
  return last_ticket_;
}

bool TaskThread::Withdraw(Ticket ticket) {
  Task dropped;  // Destroyed after the lock: it may own anything.
  MutexLock lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [ticket](const auto& entry) { return entry.first == ticket; });
  if (found == waiting_.end()) return false;
  dropped = std::move(found->second);
  waiting_.erase(found);
  return true;
}

void TaskThread::Pause(Duration duration) {
  MutexLock lock(mutex_);
  next_ = SteadyClock().Now() + duration;
}

void TaskThread::Loop() {
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (!closed_ && SteadyClock().Now() < next_) changed_.WaitUntil(mutex_, next_);
      while (waiting_.empty() && !closed_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      task = std::move(waiting_.front().second);
      waiting_.pop_front();
    }
    try {
      std::move(task)();
    } catch (const std::bad_alloc&) {
      // The next task may find memory.
    }
  }
}

}  // namespace normd

#include "server/rpc/task_thread.h"

#include <utility>

namespace normd {

TaskThread::TaskThread(std::size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Loop(); }) {}

TaskThread::~TaskThread() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalOne();
  }
  thread_.join();
}

bool TaskThread::Submit(Task task) {
  MutexLock lock(mutex_);
  if (waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(task));
  changed_.SignalOne();
  return true;
}

void TaskThread::Loop() {
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !closed_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    std::move(task)();
  }
}

}  // namespace normd

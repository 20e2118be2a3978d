// Reports changes of the loaded models one after another and without a lock.

#ifndef NORMD_SERVER_MODEL_CHANGE_QUEUE_H_
#define NORMD_SERVER_MODEL_CHANGE_QUEUE_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace normd {

// Thread-safe.
class ChangeQueue {
 public:
  // (model name, has a loaded version). Calls neither overlap nor overtake each other. May be null.
  using Callback = std::function<void(const std::string&, bool)>;

  explicit ChangeQueue(Callback callback) : callback_(std::move(callback)) {}

  // Call under the lock that orders the changes.
  void Add(const std::string& name, bool loaded) {
    MutexLock lock(mutex_);
    waiting_.emplace_back(name, loaded);
  }

  // Call after that lock. One caller at a time delivers, including the changes that others have
  // added.
  void Deliver() {
    while (true) {
      std::pair<std::string, bool> change;
      {
        MutexLock lock(mutex_);
        if (delivering_ || waiting_.empty()) return;
        delivering_ = true;
        change = std::move(waiting_.front());
        waiting_.pop_front();
      }
      if (callback_) callback_(change.first, change.second);
      MutexLock lock(mutex_);
      delivering_ = false;
    }
  }

 private:
  const Callback callback_;
  Mutex mutex_;
  std::deque<std::pair<std::string, bool>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_CHANGE_QUEUE_H_

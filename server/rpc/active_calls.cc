#include "server/rpc/active_calls.h"

#include <chrono>

namespace normd {

void ActiveCalls::Leave() {
  if (count_.fetch_sub(1) == 1 && waiting_.load()) Recheck();
}

bool ActiveCalls::WaitNone(TimePoint until, absl::FunctionRef<bool()> give_up) {
  MutexLock lock(mutex_);
  waiting_.store(true);
  bool none = count_.load() == 0;
  while (!none && !give_up() && std::chrono::steady_clock::now() < until) {
    changed_.WaitUntil(mutex_, until);
    none = count_.load() == 0;
  }
  waiting_.store(false);
  return none;
}

void ActiveCalls::Recheck() {
  MutexLock lock(mutex_);
  changed_.SignalAll();
}

}  // namespace normd

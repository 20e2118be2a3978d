// How many calls are inside the service, so that a stop can wait for the last of them.

#ifndef NORMD_SERVER_RPC_ACTIVE_CALLS_H_
#define NORMD_SERVER_RPC_ACTIVE_CALLS_H_

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"

namespace normd {

// Thread-safe. Enter and Leave take no lock unless someone waits.
class ActiveCalls {
 public:
  void Enter() { count_.fetch_add(1); }
  void Leave();

  // Waits until no call is inside (true), or until `until` on the steady clock or `give_up` says so
  // (false). Recheck makes it ask again. One waiter at a time.
  bool WaitNone(TimePoint until, absl::FunctionRef<bool()> give_up);
  void Recheck();

  std::int64_t count() const { return count_.load(); }

 private:
  // Sequentially consistent, both: either Leave sees the waiter and wakes it, or the waiter sees
  // the count that Leave left.
  std::atomic<std::int64_t> count_{0};
  std::atomic<bool> waiting_{false};
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_ACTIVE_CALLS_H_

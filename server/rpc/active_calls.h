// Which calls are inside the service, so that a stop can wait for the last of them, and end those
// that would not end by themselves.

#ifndef NORMD_SERVER_RPC_ACTIVE_CALLS_H_
#define NORMD_SERVER_RPC_ACTIVE_CALLS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace normd {

// Thread-safe. Enter and Leave take no lock unless someone waits.
class ActiveCalls {
 public:
  // A call that waits for its client.
  class Stream {
   public:
    virtual ~Stream() = default;
    // Ends it with `status`, soon. Thread-safe; without effect on one that has ended.
    virtual void Abort(const absl::Status& status) = 0;
    // Likewise, if it has accepted nothing yet, or has done nothing since `quiet_since` but wait
    // for its client to send.
    virtual void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) = 0;
  };

  void Enter() { count_.fetch_add(1); }
  void Leave();

  // Between Enter and Leave.
  void Add(const std::shared_ptr<Stream>& stream);
  void Remove(Stream* stream);
  // All that are there now.
  void AbortStreams(const absl::Status& status);
  void AbortQuietStreams(TimePoint quiet_since, const absl::Status& status);

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
  Mutex streams_mutex_;
  std::vector<std::shared_ptr<Stream>> Streams();

  // weak: a stream lives as long as gRPC wants, or an abort that has begun.
  absl::flat_hash_map<Stream*, std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(streams_mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_ACTIVE_CALLS_H_

// The calls inside the service. A stop waits for the last of them, and ends those that would not
// end by themselves.

#ifndef NORMD_SERVER_ACCEPT_ACTIVE_CALLS_H_
#define NORMD_SERVER_ACCEPT_ACTIVE_CALLS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

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
    // Ends the stream with `status`, soon. Thread-safe; no effect after its end.
    virtual void Abort(const absl::Status& status) = 0;
    // The same, but only if it has accepted nothing yet, or has only waited for its client to send
    // since `quiet_since`.
    virtual void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) = 0;
  };

  void Enter() { count_.fetch_add(1); }
  void Leave();

  // Called between Enter and Leave.
  void Add(const std::shared_ptr<Stream>& stream);
  void Remove(Stream* stream);
  // Aborts all current streams.
  void AbortStreams(const absl::Status& status);
  void AbortQuietStreams(TimePoint quiet_since, const absl::Status& status);

  // Waits until no call is inside (true), or until `until` on the steady clock or `give_up` returns
  // true (false). Recheck makes it ask again. One waiter at a time.
  bool WaitNone(TimePoint until, absl::FunctionRef<bool()> give_up);
  void Recheck();

  std::int64_t count() const { return count_.load(); }

 private:
  // Both are sequentially consistent: either Leave sees the waiter and wakes it, or the waiter sees
  // Leave's count.
  std::atomic<std::int64_t> count_{0};
  std::atomic<bool> waiting_{false};
  Mutex mutex_;
  CondVar changed_;
  Mutex streams_mutex_;
  std::vector<std::shared_ptr<Stream>> Streams();

  // weak: a stream lives as long as gRPC, or an abort in progress, needs it.
  // (abseil's hash map is broken once it has found no memory to grow.)
  std::map<Stream*, std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(streams_mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_ACTIVE_CALLS_H_

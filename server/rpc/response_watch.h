// Drops clients that do not take a response.

#ifndef NORMD_SERVER_RPC_RESPONSE_WATCH_H_
#define NORMD_SERVER_RPC_RESPONSE_WATCH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/periodic_thread.h"

struct grpc_call;

namespace normd {

// From Finish to OnDone a unary call waits for its client to take the response, for any time, and
// keeps its messages and its share of the budgets. A call that is on this list for longer than its
// patience is cancelled.
//
// Thread-safe. A call costs two short locks of a shard; a thread checks the shards once per period.
class ResponseWatch {
 public:
  // One call's place. Not on the list when it is destroyed.
  class Entry {
   private:
    friend class ResponseWatch;
    Entry* previous_ = nullptr;
    Entry* next_ = nullptr;
    std::size_t shard_ = 0;
    grpc_call* call_ = nullptr;
    std::int64_t due_ = 0;
    bool given_up_ = false;
  };

  // 0: no client is ever dropped. Patience is kept to within an eighth of the timeout, or a second.
  explicit ResponseWatch(Duration timeout);
  ResponseWatch(const ResponseWatch&) = delete;
  ResponseWatch& operator=(const ResponseWatch&) = delete;

  // Call before Finish. Cancels `call` unless Remove comes within the patience.
  void Add(Entry& entry, grpc_call* call, Duration patience);
  // Call in OnDone. Returns whether the client was dropped. No effect on an entry that was never
  // added.
  bool Remove(Entry& entry);

 private:
  static constexpr std::size_t kShards = 16;
  struct alignas(64) Shard {
    Mutex mutex;
    Entry head ABSL_GUARDED_BY(mutex);  // The head of a ring.
  };
  static void Unlink(Entry& entry);
  void Sweep();

  const Duration period_;  // 0: off.
  std::array<Shard, kShards> shards_;
  // Both are relaxed: they spread calls over shards, and count periods.
  std::atomic<std::size_t> next_shard_{0};
  std::atomic<std::int64_t> now_{0};
  std::optional<PeriodicThread> thread_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_RESPONSE_WATCH_H_

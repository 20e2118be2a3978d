// What the service was given of each connection, counted where messages arrive and read where
// connections are watched.

#ifndef NORMD_SERVER_NET_DELIVERED_BYTES_H_
#define NORMD_SERVER_NET_DELIVERED_BYTES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace normd {

// Relaxed in all: a reader that sees them late thinks for a moment that more is undelivered.
struct DeliveredCounts {
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> messages{0};
  std::atomic<std::int64_t> open_streams{0};

  void Add(std::int64_t message_bytes) {
    bytes.fetch_add(message_bytes, std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_relaxed);
  }
};

// Thread-safe. Peers are spelled as ServerContext::peer() does.
class DeliveredBytes {
 public:
  // A connection of `peer` begins, with counts of its own.
  std::shared_ptr<DeliveredCounts> Begin(const std::string& peer);
  // It has ended. Without effect when `peer` has begun another one since.
  void End(const std::string& peer, const DeliveredCounts* counts);

  // Null for a connection that did not come through the accept loop.
  std::shared_ptr<DeliveredCounts> Find(absl::string_view peer);
  // The service was given a message.
  void Record(absl::string_view peer, std::int64_t message_bytes);

 private:
  struct Shard {
    Mutex mutex;
    absl::flat_hash_map<std::string, std::shared_ptr<DeliveredCounts>> counts
        ABSL_GUARDED_BY(mutex);
  };
  Shard& ShardOf(absl::string_view peer);

  std::array<Shard, 16> shards_;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_DELIVERED_BYTES_H_

// Who calls: a connection and the peer at its other end, with what is counted for each.

#ifndef NORMD_SERVER_CALLERS_CALLER_H_
#define NORMD_SERVER_CALLERS_CALLER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace normd {

// What a budget is of.
enum class Resource { kRequests, kBytes, kChunkBytes };
inline constexpr std::size_t kResourceCount = 3;

// What somebody has of the server's budgets at the moment.
struct Holding {
  // Relaxed: they guard no memory, and a share is judged by what was there before an addition.
  std::array<std::atomic<std::int64_t>, kResourceCount> amounts{};
  std::uint64_t last_overdraft = 0;  // Guarded by the lock of whoever grants overdrafts.

  std::atomic<std::int64_t>& operator[](Resource resource) {
    return amounts[static_cast<std::size_t>(resource)];
  }
};

// What the service was given of a connection: counted where messages arrive, read where connections
// are watched. Relaxed in all: a reader that sees them late thinks for a moment that more is
// undelivered.
struct DeliveredCounts {
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> messages{0};
  std::atomic<std::int64_t> open_streams{0};

  void Add(std::int64_t message_bytes) {
    bytes.fetch_add(message_bytes, std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_relaxed);
  }
};

// One address, of which there may be many connections.
struct Peer {
  const std::string name;  // See PeerNameOf.
  const std::uint64_t id;  // No other peer of this process has it; never 0.
  Holding holding{};
};

// One connection.
struct Caller {
  const std::string name;            // As gRPC spells the other end: "ipv4:192.0.2.1:4711".
  const std::shared_ptr<Peer> peer;  // shared: by the peer's connections.
  Holding holding{};
  DeliveredCounts delivered{};
};

}  // namespace normd

#endif  // NORMD_SERVER_CALLERS_CALLER_H_

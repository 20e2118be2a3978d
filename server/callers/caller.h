// A caller: a connection and the peer at its other end, with the counts of each.

#ifndef NORMD_SERVER_CALLERS_CALLER_H_
#define NORMD_SERVER_CALLERS_CALLER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace normd {

// The kinds of budget.
enum class Resource { kRequests, kBytes, kChunkBytes };
inline constexpr std::size_t kResourceCount = 3;

// The current holdings of the server's budgets.
struct Holding {
  // Relaxed: they guard no memory, and a share is judged by the amount before an addition.
  std::array<std::atomic<std::int64_t>, kResourceCount> amounts{};
  // The limits of an identity, whatever is free; 0: its share alone bounds it. Relaxed, like the
  // amounts.
  std::array<std::atomic<std::int64_t>, kResourceCount> limits{};
  std::uint64_t last_overdraft = 0;  // Guarded by the lock of the class that grants overdrafts.

  std::atomic<std::int64_t>& operator[](Resource resource) {
    return amounts[static_cast<std::size_t>(resource)];
  }
  std::int64_t limit(Resource resource) const {
    return limits[static_cast<std::size_t>(resource)].load(std::memory_order_relaxed);
  }
  void SetLimit(Resource resource, std::int64_t limit) {
    limits[static_cast<std::size_t>(resource)].store(limit, std::memory_order_relaxed);
  }
};

// The service's receipts from a connection: counted where messages arrive, read where connections
// are watched. All relaxed: a reader that sees them late briefly overestimates the undelivered
// bytes.
struct DeliveredCounts {
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> messages{0};
  std::atomic<std::int64_t> open_streams{0};
  std::atomic<std::int64_t> calls_inside{0};  // See CallInside.

  void Add(std::int64_t message_bytes) {
    bytes.fetch_add(message_bytes, std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_relaxed);
  }
  // The size of a call's metadata, as HTTP/2 counts it. Each message has an allowance of 8 KiB for
  // it (Undelivered).
  void AddMetadata(std::int64_t metadata_bytes) {
    constexpr std::int64_t kAllowed = std::int64_t{8} << 10;
    if (metadata_bytes > kAllowed) {
      bytes.fetch_add(metadata_bytes - kAllowed, std::memory_order_relaxed);
    }
  }
};

// One address, which may have many connections; or one identity, whatever its addresses.
struct Peer {
  const std::string name;  // See PeerNameOf.
  const std::uint64_t id;  // Unique among the peers of this process; never 0.
  Holding holding{};
};

// The way in which a connection came.
struct ConnectionOrigin {
  bool admin_listener = false;  // By the listener for admin calls.
  // The listening socket; 0 for unix sockets, whose connections are one caller.
  std::size_t listener = 0;
};

// One connection.
struct Caller {
  const std::string name;            // gRPC's name of the other end: "ipv4:192.0.2.1:4711".
  const std::shared_ptr<Peer> peer;  // shared: by the peer's connections.
  const ConnectionOrigin origin{};
  Holding holding{};
  DeliveredCounts delivered{};
  // Its calls that compute, while they are inside: see Admission. Relaxed, like the amounts of a
  // Holding.
  std::atomic<std::int64_t> calls{0};

  // Unix sockets share one, as gRPC has one name for all of them.
  bool is_one_connection() const { return name.rfind("unix:", 0) != 0; }
};

// A call of one message that has reached its handler, until it ends or its client is gone: gRPC
// waits for nothing of it. Not thread-safe; `caller` outlives it and may be null.
class CallInside {
 public:
  explicit CallInside(Caller* caller) : caller_(caller) { Count(1); }
  ~CallInside() { Leave(); }
  CallInside(const CallInside&) = delete;
  CallInside& operator=(const CallInside&) = delete;

  void Leave() {
    Count(-1);
    caller_ = nullptr;
  }

 private:
  void Count(std::int64_t change) {
    if (caller_ == nullptr) return;
    caller_->delivered.calls_inside.fetch_add(change, std::memory_order_relaxed);
  }

  Caller* caller_;
};

// The accounts of a call: its connection, and its identity if there is one, else its peer. Borrows;
// either may be null.
struct CallAccount {
  // NOLINTNEXTLINE(google-explicit-constructor): a caller alone is an account.
  CallAccount(Caller* caller = nullptr, Peer* identity = nullptr)
      : connection(caller),
        party(identity != nullptr ? identity
              : caller != nullptr ? caller->peer.get()
                                  : nullptr),
        is_identity(identity != nullptr) {}

  Caller* connection;
  Peer* party;
  bool is_identity;
};

}  // namespace normd

#endif  // NORMD_SERVER_CALLERS_CALLER_H_

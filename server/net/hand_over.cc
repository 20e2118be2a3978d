#include "server/net/hand_over.h"

#include <limits>
#include <new>
#include <utility>

#include "server/net/socket_calls.h"
#include "server/net/tcp_counters.h"

namespace normd {
namespace {

// The bytes that may follow the acknowledgement before a held connection becomes readable. Linux
// supports up to half of the largest receive buffer, and makes the buffer large enough.
constexpr int kHoldBytes = 2 * kMaxHeldBytes;

}  // namespace

HandOver::HandOver(const HandOverOptions& options, Take take, std::function<void()> on_end)
    : options_(options),
      take_(std::move(take)),
      on_end_(std::move(on_end)),
      thread_("hand_over", std::numeric_limits<std::size_t>::max()) {}

// The new owner must not read the acknowledgement before it has sent its own settings: otherwise it
// would attribute it to the defaults. It begins to read when the socket is readable, so the socket
// is briefly made unreadable. With TLS no limits of HTTP/2 wait for the owner's settings, and a
// unix socket cannot be kept from being readable.
HandOver::Connection HandOver::Hold(int socket, bool is_unix) const {
  Connection connection;
  connection.taking_ = std::make_shared<std::atomic<Connection::Taking>>();
  connection.held_ = !options_.tls && !is_unix;
  const std::int64_t there = UnreadBytes(socket);
  if (connection.held_) SetLowWater(socket, static_cast<int>(there) + kHoldBytes);
  connection.opening_bytes_ = ReadTcpCounters(socket).received_bytes - there;
  return connection;
}

void HandOver::Begin(const Connection& connection, Descriptor socket, std::string first_bytes) {
  thread_.Submit([this, taking = connection.taking_, handed_on = std::move(socket),
                  first_bytes = std::move(first_bytes)]() mutable {
    auto result = Connection::Taking::kTaken;
    try {
      take_(handed_on.Release(), std::move(first_bytes));
    } catch (const std::bad_alloc&) {
      // Nothing tells whether the owner has closed its descriptor, or will: the number may already
      // be another file's. The loop ends the connection by its own descriptor.
      result = Connection::Taking::kFailed;
    }
    taking->store(result, std::memory_order_release);
    on_end_();
  });
}

HandOver::State HandOver::Check(Connection& connection, int socket, TimePoint now) const {
  const auto taking = connection.taking_->load(std::memory_order_acquire);
  if (taking == Connection::Taking::kFailed) return State::kFailed;
  const bool taken = taking == Connection::Taking::kTaken;
  if (!connection.held_) return taken ? State::kServing : State::kOnItsWay;
  const TcpCounters counters = ReadTcpCounters(socket);
  const bool written = counters.written_bytes > options_.settings_bytes;
  if (connection.since_ == kNever && (written || taken)) connection.since_ = now;
  const bool late = connection.since_ != kNever && now - connection.since_ >= options_.timeout;
  if (taken && (written || counters.closed || late)) {
    SetLowWater(socket, 1);
    return State::kServing;
  }
  const bool much = counters.received_bytes - connection.opening_bytes_ > kMaxHeldBytes;
  return much && (!written || late) ? State::kOversize : State::kOnItsWay;
}

}  // namespace normd

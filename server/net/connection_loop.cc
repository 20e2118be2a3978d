#include "server/net/connection_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "server/net/process_limits.h"
#include "server/net/socket_calls.h"
#include "server/net/tcp_counters.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr std::uint64_t kWakeId = 0;
constexpr std::uint64_t kFirstListenerId = 1;

constexpr Duration kCalmCheck = std::chrono::milliseconds(100);
constexpr std::int64_t kSuspiciousBytes = std::int64_t{1} << 20;
// While at most this is undelivered in all, the heap shows from time to time what else it holds.
constexpr std::int64_t kCalmBytes = std::int64_t{16} << 20;
constexpr Duration kCalmHeapInterval = std::chrono::seconds(1);
// When undelivered bytes exceed twice their former amount by this, the heap is asked whether it
// holds them.
constexpr std::int64_t kAskHeapBytes = std::int64_t{64} << 20;
// The interval between checks of closing connections.
constexpr int kCloseRoundMillis = 5;

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

ConnectionLoop::Connection::Connection(Descriptor descriptor, PeerAddress address,
                                       const OpeningRules& rules, TimePoint now)
    : socket(std::move(descriptor)),
      peer(std::move(address)),
      since(now),
      opening(rules),
      undelivered(now) {}

ConnectionLoop::ConnectionLoop(const ConnectionLoopOptions& options, Listener listener,
                               Callbacks callbacks, Callers& callers, ConnectionMetrics& metrics)
    : options_(options),
      callbacks_(std::move(callbacks)),
      callers_(callers),
      metrics_(metrics),
      opening_rules_{options.min_tls_version,
                     Http2Settings(options.max_concurrent_streams, options.max_header_list_bytes)},
      epoll_(Opened(epoll_create1(EPOLL_CLOEXEC))),
      wake_(Opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      acceptor_(std::move(listener), epoll_.get(), kFirstListenerId),
      next_id_(acceptor_.end_id()),
      hand_over_({.tls = options.min_tls_version.has_value(),
                  .timeout = options.hand_over_timeout,
                  .settings_bytes = static_cast<std::int64_t>(opening_rules_.settings.size())},
                 callbacks_.take, [this] { Wake(); }) {
  metrics_.SetLimit(options_.limits.connections);
  ControlEpoll(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), kWakeId, EPOLLIN);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "connections");
}

ConnectionLoop::~ConnectionLoop() {
  stopping_.store(true, std::memory_order_relaxed);  // The event orders it.
  Wake();
  thread_.join();
  for (const auto& [id, connection] : connections_) {
    if (connection->stage == Stage::kHeld) SetLowWater(connection->socket.get(), 1);
  }
}

// Connections that are being handed on continue: the loop can end those whose clients delay it.
bool ConnectionLoop::Stopped() {
  if (!stopping_.load(std::memory_order_relaxed)) return false;
  acceptor_.Stop();
  std::erase_if(connections_,
                [](const auto& entry) { return entry.second->stage == Stage::kOpening; });
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second->stage == Stage::kHeld && entry.second->hand_over.waits();
  });
}

void ConnectionLoop::Wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void ConnectionLoop::CloseAll(Duration grace) {
  close_until_.store(Now() + grace, std::memory_order_relaxed);
  Wake();
  all_closed_.wait(false);
}

bool ConnectionLoop::closing() const {
  return close_until_.load(std::memory_order_relaxed) != kNever &&
         !all_closed_.load(std::memory_order_relaxed);
}

// Runs until their owners have closed them all: closes each when its sent bytes have arrived.
void ConnectionLoop::CloseRound(TimePoint now) {
  acceptor_.Stop();
  const bool last = now >= close_until_.load(std::memory_order_relaxed);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, connection] : connections_) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    const Connection& connection = *connections_.at(id);
    const int socket = connection.socket.get();
    if (connection.stage == Stage::kOpening || ReadTcpCounters(socket).closed) {
      Forget(id);
    } else if (last || !HasUnsent(socket)) {
      shutdown(socket, SHUT_RD);
    }
  }
  if (!connections_.empty() && !last) return;
  all_closed_.store(true, std::memory_order_relaxed);
  all_closed_.notify_all();
}

void ConnectionLoop::Run() {
  epoll_event events[256];
  next_traffic_check_ = Now();
  for (;;) {
    const int count =
        epoll_wait(epoll_.get(), events, static_cast<int>(std::size(events)), WaitMillis());
    if (Stopped()) return;
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[i].data.u64;
      try {
        OnEvent(id, events[i].events);
      } catch (const std::bad_alloc&) {
        Drop(id);
      }
    }
    try {
      RunTimers();
      UpdateRoom();
    } catch (const std::bad_alloc&) {
      // The next round may find memory.
    }
  }
}

void ConnectionLoop::RunTimers() {
  const TimePoint now = Now();
  acceptor_.Resume(now);
  trim_.Check(now);
  if (closing()) CloseRound(now);
  CheckHeld(now);
  CheckOpenings(now);
  if (now >= next_traffic_check_) CheckTraffic(now);
}

int ConnectionLoop::WaitMillis() const {
  if (closing()) return kCloseRoundMillis;
  if (!held_.empty()) return 1;
  if (!active_.empty() && suspicious_) return SuspiciousMillis(options_.traffic.process_bytes);
  if (!active_.empty() || !openings_.empty()) return 100;
  if (acceptor_.paused() || trim_.waits()) return 100;
  return -1;
}

void ConnectionLoop::OnEvent(std::uint64_t id, std::uint32_t events) {
  if (id == kWakeId) {
    std::uint64_t wakes = 0;
    (void)!read(wake_.get(), &wakes, sizeof(wakes));
    return;
  }
  if (id < acceptor_.end_id()) return Accept(id);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (connection.stage == Stage::kOpening) {
    return ReadOpening(id, connection, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
  }
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) return Forget(id);
  // It is registered for one event, so a busy connection does not wake this thread again.
  if (active_.empty()) next_traffic_check_ = std::min(next_traffic_check_, Now() + kCalmCheck);
  active_.push_back(id);
}

void ConnectionLoop::Accept(std::uint64_t id) {
  const int error = acceptor_.Accept(
      id, [this](Descriptor socket, const PeerAddress& peer, ConnectionOrigin origin) {
        try {
          Admit(std::move(socket), peer, origin);
        } catch (const std::bad_alloc&) {
          // This connection closes, and others are accepted.
        }
      });
  if (error == 0) return;
  metrics_.RecordRefused(ConnectionRefusal::kNoDescriptors);
  refusal_log_.Record("", std::strerror(error), Now());
}

void ConnectionLoop::Admit(Descriptor socket, const PeerAddress& peer, ConnectionOrigin origin) {
  const auto of_peer = per_peer_.find(peer.share);
  const Taking taking =
      DecideTaking(options_.limits, static_cast<std::int64_t>(connections_.size()),
                   of_peer != per_peer_.end() ? of_peer->second : 0);
  if (peer.is_unix && !MayUseSocket(PeerProcess(socket.get()))) {
    return refusal_log_.Record(peer.grpc_peer, "its process is another user's", Now());
  }
  if (taking != Taking::kTake) {
    // Closed before a word of HTTP/2: a gRPC client takes it for UNAVAILABLE and backs off. A
    // proper GOAWAY would make it come back at once.
    const bool full = taking == Taking::kFull;
    metrics_.RecordRefused(full ? ConnectionRefusal::kFull : ConnectionRefusal::kPeerFull);
    refusal_log_.Record(
        peer.grpc_peer,
        full ? "--max_connections are open" : "--max_peer_connections of it are open", Now());
    return;
  }
  metrics_.RecordAccepted();
  const std::uint64_t id = next_id_++;
  openings_.push_back(id);
  auto connection = std::make_unique<Connection>(std::move(socket), peer, opening_rules_, Now());
  Connection& added = *connection;
  added.origin = origin;
  std::int64_t& of_share = per_peer_[peer.share];
  connections_.emplace(id, std::move(connection));
  ++of_share;  // Last, when nothing can throw any more.
  metrics_.SetOpen(static_cast<std::int64_t>(connections_.size()));
  ControlEpoll(epoll_.get(), EPOLL_CTL_ADD, added.socket.get(), id, EPOLLIN | EPOLLRDHUP | EPOLLET);
  try {
    ReadOpening(id, added, /*ended=*/false);
  } catch (const std::bad_alloc&) {
    Drop(id);
  }
}

// `ended`: nothing follows. Bytes of an incomplete opening hide the end from a reader that leaves
// them unread, and no event comes again.
void ConnectionLoop::ReadOpening(std::uint64_t id, Connection& connection, bool ended) {
  switch (connection.opening.Read(connection.socket.get())) {
    case ConnectionOpening::Step::kMore:
      if (!ended) return;
      break;
    case ConnectionOpening::Step::kDone: return HandOn(id, connection);
    case ConnectionOpening::Step::kLeft: break;
    case ConnectionOpening::Step::kRefused:
      metrics_.RecordEnded(connection.opening.ending());
      spdlog::debug("connection of {}: {}", connection.peer.grpc_peer, connection.opening.error());
  }
  Forget(id);
}

void ConnectionLoop::HandOn(std::uint64_t id, Connection& connection) {
  // Calls find their connection by its name, the client's address: the same one at two listeners
  // would give a connection the other's rights and counts.
  if (callers_.IsOtherwise(connection.peer.grpc_peer, connection.origin)) {
    refusal_log_.Record(connection.peer.grpc_peer,
                        "its address is connected to another listener too", Now());
    return Forget(id);
  }
  const int socket = connection.socket.get();
  Descriptor watch(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!watch.valid()) {
    metrics_.RecordRefused(ConnectionRefusal::kNoDescriptors);
    return Forget(id);
  }
  connection.hand_over = hand_over_.Hold(socket, connection.peer.is_unix);
  ControlEpoll(epoll_.get(), EPOLL_CTL_DEL, socket, id, 0);
  ControlEpoll(epoll_.get(), EPOLL_CTL_ADD, watch.get(), id, EPOLLIN | EPOLLONESHOT);
  // Connections of unix sockets share one: nothing tells their calls apart.
  connection.caller = connection.peer.is_unix
                          ? callers_.Find(connection.peer.grpc_peer)
                          : callers_.Begin(connection.peer.grpc_peer, connection.origin);
  held_.push_back(id);
  connection.stage = Stage::kHeld;
  hand_over_.Begin(connection.hand_over, std::exchange(connection.socket, std::move(watch)),
                   connection.opening.TakeFirstBytes());
}

bool ConnectionLoop::IsHeld(std::uint64_t id, Connection& connection, TimePoint now) {
  switch (hand_over_.Check(connection.hand_over, connection.socket.get(), now)) {
    case HandOver::State::kOnItsWay: return true;
    case HandOver::State::kServing: connection.stage = Stage::kServing; break;
    case HandOver::State::kFailed: Drop(id); break;
    case HandOver::State::kOversize: Cut(id, connection, ConnectionEnding::kOversize); break;
  }
  return false;
}

void ConnectionLoop::CheckHeld(TimePoint now) {
  std::erase_if(held_, [&](std::uint64_t id) {
    const auto found = connections_.find(id);
    return found == connections_.end() || !IsHeld(id, *found->second, now);
  });
}

void ConnectionLoop::CheckOpenings(TimePoint now) {
  while (!openings_.empty()) {
    const auto found = connections_.find(openings_.front());
    if (found != connections_.end() && found->second->stage == Stage::kOpening) {
      if (now - found->second->since < options_.handshake_timeout) return;
      Cut(found->first, *found->second, ConnectionEnding::kHandshakeTimeout);
    }
    openings_.pop_front();
  }
}

void ConnectionLoop::CheckTraffic(TimePoint now) {
  std::int64_t sum = 0;
  std::int64_t grown = 0;
  std::int64_t most = 0;
  oversize_.clear();
  std::erase_if(active_, [&](std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return true;
    const std::int64_t before = found->second->undelivered.bytes();
    if (!Sample(id, *found->second, now)) return true;
    const std::int64_t bytes = found->second->undelivered.bytes();
    sum += bytes;
    grown += std::max<std::int64_t>(bytes - before, 0);
    most = std::max(most, bytes);
    return false;
  });
  undelivered_ = std::min(sum, undelivered_ + grown);
  AskHeap(now);
  EndOversize();
  EndWorst();
  metrics_.SetUndelivered(undelivered_);
  suspicious_ = most > kSuspiciousBytes;
  next_traffic_check_ =
      now + (suspicious_
                 ? std::chrono::milliseconds(SuspiciousMillis(options_.traffic.process_bytes))
                 : kCalmCheck);
}

// While other calls continue, no count shows what gRPC has discarded of cancelled ones. The heap
// does: everything undelivered is in it.
void ConnectionLoop::AskHeap(TimePoint now) {
  const bool calm = undelivered_ <= kCalmBytes;
  const bool asks = calm ? now >= next_calm_heap_ : undelivered_ > ask_heap_above_;
  if (!callbacks_.heap_bytes || (!asks && oversize_.empty())) return;
  const std::int64_t heap = callbacks_.heap_bytes();
  if (heap == 0) return;
  if (calm) {
    // Otherwise the bytes that requests return later would hide as many undelivered ones.
    const std::int64_t inside = callbacks_.inside_bytes ? callbacks_.inside_bytes() : 0;
    heap_without_ = heap - undelivered_ - inside;
    next_calm_heap_ = now + kCalmHeapInterval;
  }
  const std::int64_t held = std::max<std::int64_t>(heap - heap_without_, 0);
  for (const std::uint64_t id : active_) connections_.at(id)->undelivered.Cap(held);
  undelivered_ = std::min(undelivered_, held);
  ask_heap_above_ = 2 * undelivered_ + kAskHeapBytes;
  const std::int64_t limit = options_.traffic.process_bytes;
  if (limit > 0) ask_heap_above_ = std::min(ask_heap_above_, limit);
}

void ConnectionLoop::EndOversize() {
  for (const std::uint64_t id : oversize_) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    if (connection.undelivered.bytes() <= options_.traffic.connection_bytes) continue;
    EndForBytes(id, connection, ConnectionEnding::kOversize);
  }
}

void ConnectionLoop::EndForBytes(std::uint64_t id, Connection& connection, ConnectionEnding why) {
  undelivered_ = std::max<std::int64_t>(undelivered_ - connection.undelivered.bytes(), 0);
  Cut(id, connection, why);
  std::erase(active_, id);
  next_calm_heap_ = Now() + kCalmHeapInterval;  // Until gRPC has freed it.
}

// False when the connection is no longer active.
bool ConnectionLoop::Sample(std::uint64_t id, Connection& connection, TimePoint now) {
  const DeliveredCounts& delivered = connection.caller->delivered;
  TrafficSample sample{now};
  // Before the received bytes: a concurrent delivery then counts as undelivered at worst.
  sample.delivered_messages = delivered.messages.load(std::memory_order_relaxed);
  sample.delivered_bytes = delivered.bytes.load(std::memory_order_relaxed);
  sample.open_streams = delivered.open_streams.load(std::memory_order_relaxed);
  const std::int64_t calls_inside = delivered.calls_inside.load(std::memory_order_relaxed);
  const TcpCounters counters = ReadTcpCounters(connection.socket.get());
  if (counters.closed) return Forget(id), false;
  sample.received_bytes = counters.received_bytes;
  switch (connection.undelivered.Add(sample, options_.traffic)) {
    case TrafficVerdict::kOversize: oversize_.push_back(id); break;
    case TrafficVerdict::kStalled:
      return Cut(id, connection, ConnectionEnding::kMessageTimeout), false;
    case TrafficVerdict::kFine: break;
  }
  ForgetCancelled(connection, calls_inside, counters.received_bytes, now);
  if (HasTooManyStreams(connection, counters.received_bytes, now)) {
    return Cut(id, connection, ConnectionEnding::kOversize), false;
  }
  const bool quiet = connection.received_bytes == counters.received_bytes &&
                     connection.undelivered.bytes() <= Undelivered::kNoticeableBytes;
  connection.received_bytes = counters.received_bytes;
  if (!quiet) return true;
  ControlEpoll(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), id, EPOLLIN | EPOLLONESHOT);
  return false;
}

bool ConnectionLoop::HasTooManyStreams(Connection& connection, std::int64_t received_bytes,
                                       TimePoint now) {
  if (options_.max_streams == 0 || !options_.min_tls_version || connection.peer.is_unix ||
      !callbacks_.streams_of || !connection.streams.IsDue(received_bytes, now)) {
    return false;
  }
  const auto streams = callbacks_.streams_of(connection.peer.grpc_peer);
  connection.streams.Set(streams.has_value() ? streams->open : 0, received_bytes, now);
  return connection.streams.count() > options_.max_streams;
}

void ConnectionLoop::ForgetCancelled(Connection& connection, std::int64_t calls_inside,
                                     std::int64_t received_bytes, TimePoint now) {
  if (connection.undelivered.bytes() <= Undelivered::kNoticeableBytes || connection.peer.is_unix ||
      !callbacks_.streams_of || !connection.waiting.IsDue(now)) {
    return;
  }
  const auto streams = callbacks_.streams_of(connection.peer.grpc_peer);
  if (!streams.has_value()) return;
  connection.undelivered.Cap(
      connection.waiting.MostHeld(calls_inside, *streams, received_bytes, now));
}

// Ends the connection with the most, of the address with the most, so that others find room.
void ConnectionLoop::EndWorst() {
  const std::int64_t limit = options_.traffic.process_bytes;
  while (limit > 0 && undelivered_ > limit && !active_.empty()) {
    std::map<std::string, std::int64_t> of_peers;
    for (const std::uint64_t id : active_) {
      const Connection& connection = *connections_.at(id);
      of_peers[connection.peer.share] += connection.undelivered.weight();
    }
    const auto rank = [&](std::uint64_t id) {
      const Connection& connection = *connections_.at(id);
      return std::pair(of_peers.at(connection.peer.share), connection.undelivered.weight());
    };
    const std::uint64_t worst =
        *std::max_element(active_.begin(), active_.end(),
                          [&](std::uint64_t a, std::uint64_t b) { return rank(a) < rank(b); });
    EndForBytes(worst, *connections_.at(worst), ConnectionEnding::kTransportBytes);
  }
}

// The new owner reads the end of the connection from its own descriptor.
void ConnectionLoop::Cut(std::uint64_t id, Connection& connection, ConnectionEnding why) {
  if (connection.stage == Stage::kHeld) {
    spdlog::warn("connection of {} ended: it sent more than {} bytes while it was handed over",
                 connection.peer.grpc_peer, kMaxHeldBytes);
  } else if (options_.max_streams > 0 && connection.streams.count() > options_.max_streams) {
    spdlog::warn("connection of {} ended: it has {} calls at once, wanted at most {}",
                 connection.peer.grpc_peer, connection.streams.count(), options_.max_streams);
  } else if (connection.stage == Stage::kServing) {
    spdlog::warn("connection of {} ended: {} bytes of it wait for the rest of their messages ({})",
                 connection.peer.grpc_peer, connection.undelivered.bytes(),
                 std::string(ConnectionEndingName(why)));
  }
  metrics_.RecordEnded(why);
  ShutDownUnread(connection.socket.get());
  Forget(id);
}

// Ends a connection for which no memory is left, if it is still there. Its owner would otherwise go
// on with it, and no limit would apply.
void ConnectionLoop::Drop(std::uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = *found->second;
  if (connection.stage != Stage::kOpening) ShutDownUnread(connection.socket.get());
  Forget(id);
}

void ConnectionLoop::Forget(std::uint64_t id) {
  const auto found = connections_.find(id);
  const Connection& connection = *found->second;
  if (connection.stage != Stage::kOpening) {
    trim_.OnEnd(ReadTcpCounters(connection.socket.get()).received_bytes, Now());
  }
  // While the other descriptor is open, closing this one does not unregister it.
  ControlEpoll(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), id, 0);
  const auto of_peer = per_peer_.find(connection.peer.share);
  if (--of_peer->second == 0) per_peer_.erase(of_peer);
  connections_.erase(found);
  metrics_.SetOpen(static_cast<std::int64_t>(connections_.size()));
}

void ConnectionLoop::UpdateRoom() {
  const bool room =
      !acceptor_.paused() &&
      DecideRoom(options_.limits, static_cast<std::int64_t>(connections_.size()), room_);
  if (room == room_) return;
  callbacks_.on_room(room);  // If this throws, the next round tells it.
  room_ = room;
}

}  // namespace normd

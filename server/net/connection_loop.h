// The thread that accepts connections, checks their opening, hands them to gRPC, and watches them.

#ifndef NORMD_SERVER_NET_CONNECTION_LOOP_H_
#define NORMD_SERVER_NET_CONNECTION_LOOP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "server/callers/callers.h"
#include "server/metrics/metrics.h"
#include "server/net/acceptor.h"
#include "server/net/connection_opening.h"
#include "server/net/connection_policy.h"
#include "server/net/hand_over.h"
#include "server/net/heap_trim.h"
#include "server/net/listener.h"
#include "server/net/peer_address.h"
#include "server/net/refusal_log.h"
#include "server/net/stream_count.h"
#include "server/net/undelivered.h"

namespace normd {

struct ConnectionLoopOptions {
  ConnectionLimits limits;
  // If set, connections begin with TLS, of this version or a newer one (kTls12, kTls13).
  std::optional<std::uint16_t> min_tls_version;
  // The time for a client's preface and its acknowledgement of the settings; with TLS for its
  // hello.
  Duration handshake_timeout = std::chrono::seconds(10);
  // The time for a new owner between sending its settings and returning from `take`, in either
  // order. It normally does both at once; later, its client is dropped, or no longer held back.
  Duration hand_over_timeout = std::chrono::seconds(1);
  // The server's settings; gRPC's own later ones are the same.
  std::uint32_t max_concurrent_streams = 100;
  std::uint32_t max_header_list_bytes = 8192;
  TrafficLimits traffic;
  // The most streams that the new owner may hold of one connection (Callbacks::streams_of); 0: no
  // limit.
  std::int64_t max_streams = 0;
};

// A connection is handed on when its client has acknowledged the server's settings, with that
// acknowledgement as the next bytes to read: the new owner then applies its limits to the client
// from the start, whether or not the client acknowledges anything later. The loop keeps a second
// descriptor, by which it notices the end of the connection and ends it when its client breaks the
// traffic limits.
//
// With TLS the loop only sees the client's hello. A connection is handed on when that has come,
// with all of it still to be read: the new owner does the handshake, limits its time, and reads
// HTTP/2 from the beginning. The new owner's limits do not bind a client that never acknowledges
// settings; so the loop asks the owner for its number of streams, after each 16 KiB received, and
// ends a connection with too many.
//
// Unix sockets are accepted from the server's own user and from root. They are one caller, because
// gRPC has the same name for all of them. The traffic limits, which need TCP's counts, do not apply
// to them.
class ConnectionLoop {
 public:
  struct Callbacks {
    // Takes over `socket`, whose first bytes have already been read. One connection after another,
    // on a dedicated thread. It may throw std::bad_alloc: the loop then ends the connection, and
    // leaves the descriptor to the owner.
    HandOver::Take take;
    // Reports whether a new client finds room, at each change. On the loop's thread.
    std::function<void(bool room)> on_room;
    // The new owner's streams of this client's connection, by gRPC's name; nullopt if unknown. On
    // the loop's thread, for connections over TCP, each at most twenty times a second. May be null.
    std::function<std::optional<StreamCounts>(const std::string& grpc_peer)> streams_of = nullptr;
    // The heap that contains the new owners' received bytes; 0 if unknown. On the loop's thread:
    // once a second, and more often while much is undelivered. May be null.
    std::function<std::int64_t()> heap_bytes = nullptr;
    // The part of it that may belong to requests inside, which will free it. Likewise.
    std::function<std::int64_t()> inside_bytes = nullptr;
  };

  // `callers` and `metrics` outlive it. Accepts from here on. Throws std::system_error where the
  // system gives no descriptor or thread.
  ConnectionLoop(const ConnectionLoopOptions& options, Listener listener, Callbacks callbacks,
                 Callers& callers, ConnectionMetrics& metrics);
  // Stops accepting, closes connections that are not to be handed on yet, and stops watching once
  // the others have been.
  ~ConnectionLoop();
  ConnectionLoop(const ConnectionLoop&) = delete;
  ConnectionLoop& operator=(const ConnectionLoop&) = delete;

  // Stops accepting and ends every connection: it is closed for reading once its client has the
  // sent bytes, or after `grace`; its owner takes this for the client's leaving. A call on its way
  // meets a closed connection, which every client reports as UNAVAILABLE and may retry elsewhere.
  // Waits until the owners have closed them all, or for `grace`. Called at most once.
  //
  // gRPC 1.51 sends CANCELLED to each call that arrives while a server shuts down and its
  // connections still live, and has no way to end these first:
  // https://github.com/grpc/grpc/issues/41785.
  void CloseAll(Duration grace);

 private:
  enum class Stage {
    kOpening,  // Up to the acknowledgement.
    kHeld,     // Being handed on.
    kServing,
  };
  struct Connection {
    // `rules` outlive it.
    Connection(Descriptor descriptor, PeerAddress address, const OpeningRules& rules,
               TimePoint now);

    Descriptor socket;
    PeerAddress peer;
    ConnectionOrigin origin;
    Stage stage = Stage::kOpening;
    TimePoint since;  // The beginning of kOpening.
    ConnectionOpening opening;
    std::shared_ptr<Caller> caller;  // shared: with its calls. From kHeld on.
    HandOver::Connection hand_over;  // From kHeld on.
    Undelivered undelivered;
    std::int64_t received_bytes = 0;  // At the last sample.
    StreamCount streams;
    WaitingStreams waiting;
  };
  using Connections = std::unordered_map<std::uint64_t, std::unique_ptr<Connection>>;

  void Run();
  void RunTimers();
  void Wake();
  int WaitMillis() const;
  bool closing() const;
  bool Stopped();
  void CloseRound(TimePoint now);
  void OnEvent(std::uint64_t id, std::uint32_t events);
  void Accept(std::uint64_t id);
  void Admit(Descriptor socket, const PeerAddress& peer, ConnectionOrigin origin);
  void ReadOpening(std::uint64_t id, Connection& connection, bool ended);
  void HandOn(std::uint64_t id, Connection& connection);
  bool IsHeld(std::uint64_t id, Connection& connection, TimePoint now);
  void CheckHeld(TimePoint now);
  void CheckOpenings(TimePoint now);
  void CheckTraffic(TimePoint now);
  bool Sample(std::uint64_t id, Connection& connection, TimePoint now);
  bool HasTooManyStreams(Connection& connection, std::int64_t received_bytes, TimePoint now);
  void ForgetCancelled(Connection& connection, std::int64_t calls_inside,
                       std::int64_t received_bytes, TimePoint now);
  void AskHeap(TimePoint now);
  void EndOversize();
  void EndWorst();
  void EndForBytes(std::uint64_t id, Connection& connection, ConnectionEnding why);
  void Cut(std::uint64_t id, Connection& connection, ConnectionEnding why);
  void Drop(std::uint64_t id);
  void Forget(std::uint64_t id);
  void UpdateRoom();

  const ConnectionLoopOptions options_;
  const Callbacks callbacks_;
  Callers& callers_;
  ConnectionMetrics& metrics_;
  const OpeningRules opening_rules_;
  Descriptor epoll_;
  Descriptor wake_;
  std::atomic<bool> stopping_{false};
  // The end of CloseAll's wait; kNever before it. Relaxed: the event orders it.
  std::atomic<TimePoint> close_until_{kNever};
  std::atomic<bool> all_closed_{false};

  // Used by the thread alone.
  Acceptor acceptor_;
  Connections connections_;
  // (abseil's hash map is broken once it has found no memory to grow.)
  std::map<std::string, std::int64_t> per_peer_;
  // By stage; they may name connections that are gone or have moved on. Of those that serve, the
  // active ones: they have received something and are sampled until nothing more comes.
  std::deque<std::uint64_t> openings_;  // Oldest first.
  std::vector<std::uint64_t> held_;
  std::vector<std::uint64_t> active_;
  std::uint64_t next_id_;
  bool room_ = true;
  bool suspicious_ = false;              // Some connection has much undelivered.
  std::vector<std::uint64_t> oversize_;  // By their estimates; only in CheckTraffic.
  // All connections together: at most their estimates, and at most the heap's growth.
  std::int64_t undelivered_ = 0;
  // The rest of the heap while that was little.
  std::int64_t heap_without_ = 0;
  TimePoint next_calm_heap_ = TimePoint::min();
  std::int64_t ask_heap_above_ = 0;  // Compared with `undelivered_`.
  TimePoint next_traffic_check_;
  HeapTrim trim_;
  RefusalLog refusal_log_;

  HandOver hand_over_;
  std::thread thread_;  // Last: it uses the rest.
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_CONNECTION_LOOP_H_

// The gRPC server: its port and connections, its channel settings, health and reflection.

#ifndef NORMD_SERVER_RPC_SERVER_H_
#define NORMD_SERVER_RPC_SERVER_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/net/connection_loop.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/health_service.h"
#include "server/rpc/raw_service.h"
#include "server/rpc/readiness.h"
#include "server/rpc/reflection_service.h"
#include "server/rpc/transport_streams.h"
#include "server/tls/certificate_store.h"

namespace normd {

// Durations of 0: no limit, or gRPC's default.
struct ConnectionOptions {
  std::int64_t max_connections = 0;       // 0: as many as there are descriptors for, up to 10,000.
  std::int64_t max_peer_connections = 0;  // 0: three quarters of them.
  // The time for the client's preface and its acknowledgement of our settings. With TLS for its
  // hello, and then for the rest of the handshake with its first settings.
  Duration handshake_timeout = std::chrono::seconds(10);
  // The time for a call's message, extended while it brings min_message_rate bytes per second.
  Duration message_timeout = std::chrono::seconds(30);
  std::int64_t min_bytes_per_second = 4096;
  // A silent connection is pinged after this time, and ended without an answer.
  Duration keepalive_time{0};
  Duration keepalive_timeout = std::chrono::seconds(20);
  // Faster pings, without data from the server between them, end a connection.
  Duration min_ping_interval{0};
  // A connection without calls for this long, or of this age, gets a GOAWAY; its calls may finish,
  // until the grace has passed.
  Duration max_idle{0};
  Duration max_age{0};
  Duration max_age_grace{0};
};

struct ServerOptions {
  std::string listen = "127.0.0.1:8001";  // See ListenAtAll; port 0: any free one.
  std::int64_t max_request_bytes = std::int64_t{256} << 20;
  // The calls of one connection that may be inside at once (Admission bounds them): HTTP/2 allows
  // kMaxIdleStreams more to be open. 0: gRPC's default, which is no limit.
  int max_connection_calls = 0;
  // The bytes that gRPC may hold of messages in transit, beside those of requests inside: above it,
  // the address with most of them loses connections. 0: no limit.
  std::int64_t max_transport_bytes = 0;
  // The bytes of requests inside; gRPC holds their inputs.
  std::int64_t max_inflight_bytes = 0;
  ConnectionOptions connections = {};
  // A second address, whose connections are the admin listener's; empty: none.
  std::string admin_listen = {};
  // Null: no TLS. Outlives the server.
  const CertificateStore* tls = nullptr;
  // Descriptors that other parts may still open, beside DecideLimits' reserve.
  std::int64_t reserved_descriptors = 0;
};

// Open calls of a connection beside those that may be inside: idle streams, control calls, and
// calls that are about to be refused. Further calls wait at the client, unsent.
inline constexpr int kMaxIdleStreams = 128;

// With more metadata than this in one call gRPC ends its connection, with all other calls. So it
// exceeds the limit at which only the call is refused (AcceptLimits), and the default limit of
// proxies: 64 KiB, and 32 bytes for each of 100 names.
constexpr int HardMetadataBytes(std::int64_t max_metadata_bytes) {
  constexpr std::int64_t kProxiesBytes = std::int64_t{96} << 10;
  return static_cast<int>(std::max(kProxiesBytes, 2 * max_metadata_bytes));
}

// Serves from Start to Shutdown. Start and Shutdown are called by one thread.
class Server {
 public:
  // The services' calls have `environment`, which outlives the server as `readiness` does.
  // Unavailable, with the address, if it cannot be bound; ResourceExhausted without descriptors.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       absl::Span<const ServedService> services,
                                                       CallEnvironment& environment,
                                                       Readiness& readiness);
  // Shuts down at once if Shutdown was not called.
  ~Server();

  // The addresses with the ports in use.
  const std::string& address() const { return address_; }
  int port() const { return port_; }  // The first; 0 where all are unix sockets.
  // The admin listener's; empty without one.
  const std::string& admin_address() const { return admin_address_; }

  // See ConnectionLoop::CloseAll. Before Shutdown, because gRPC says CANCELLED to calls that arrive
  // while it shuts down.
  void CloseConnections(Duration grace);
  // Accepts no more connections nor calls, waits for those inside until `grace` has passed, then
  // cancels the rest and waits for their end. Watches of the health service end with it.
  void Shutdown(Duration grace);

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  Server(std::unique_ptr<HealthService> health, std::unique_ptr<grpc::Server> server,
         std::unique_ptr<Acceptor> acceptor, Readiness& readiness, std::string address, int port);

  std::shared_ptr<grpc::ServerCredentials> credentials_;  // shared: with gRPC.
  // These outlive the server that they are registered with.
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<ReflectionServices> reflection_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  Readiness& readiness_;
  const std::string address_;
  const int port_;
  std::string admin_address_;  // Constant after Start.
  TransportStreams streams_;
  std::unique_ptr<ConnectionLoop> loop_;  // Until Shutdown. It calls the others.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_SERVER_H_

#include "server/rpc/server.h"

#include <limits>
#include <utility>
#include <vector>

#include "grpcpp/resource_quota.h"
#include "server/accept/message_limits.h"
#include "server/net/process_limits.h"
#include "server/net/tls_opening.h"
#include "server/rpc/credentials.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

void SetMillis(grpc::ServerBuilder& builder, const char* argument, Duration value) {
  if (value == Duration(0)) return;
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(value).count();
  builder.AddChannelArgument(
      argument, static_cast<int>(std::min<std::int64_t>(millis, std::numeric_limits<int>::max())));
}

void SetUpConnections(const ServerOptions& server, grpc::ServerBuilder& builder) {
  const ConnectionOptions& options = server.connections;
  // Without TLS the accept loop has completed the opening by then.
  if (server.tls != nullptr) {
    SetMillis(builder, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.handshake_timeout);
  }
  SetMillis(builder, GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time);
  SetMillis(builder, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout);
  SetMillis(builder, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
            options.min_ping_interval);
  SetMillis(builder, GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.max_idle);
  SetMillis(builder, GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_age);
  SetMillis(builder, GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, options.max_age_grace);
  // Without it a client that pings without a call may ping once in two hours.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

void SetUpMessages(const ServerOptions& options, grpc::ServerBuilder& builder) {
  // gRPC receives a message to its end before it looks at its size, and ends a call that nobody
  // has counted. CheckMessageBytes refuses the tensors' messages in a call; control calls have
  // limits of their own.
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  if (options.max_connection_calls > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               options.max_connection_calls + kMaxIdleStreams);
  }
  if (options.max_transport_bytes > 0) {
    // This quota stays far from full while the loop ends the busiest senders (TrafficOf): a full
    // quota closes everybody's windows and ends calls that gRPC picks at random. It also contains
    // the inputs of requests inside, and of requests that are being refused.
    constexpr std::int64_t kMost = std::int64_t{1} << 50;
    const std::int64_t expected =
        std::min(options.max_transport_bytes, kMost) + std::min(options.max_inflight_bytes, kMost);
    grpc::ResourceQuota quota("normd");
    quota.Resize(static_cast<std::size_t>(expected + expected / 2));
    builder.SetResourceQuota(quota);
  }
  // gRPC checks a compressed message's size before it inflates it: a megabyte on the wire could
  // become a gigabyte in memory before our code sees it. So OpenMessage inflates messages.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

TrafficLimits TrafficOf(const ServerOptions& options) {
  // A message that is slightly too large for a call is received to its end and refused with a
  // status that says so.
  constexpr std::int64_t kRefusableBytes = std::int64_t{64} << 20;
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
  TrafficLimits limits;
  if (options.tls != nullptr) limits.frames_share = kTlsFramesShare;
  limits.connection_bytes =
      options.max_connection_calls == 0
          ? kUnlimited
          : std::max(kRefusableBytes, (options.max_connection_calls + kMaxIdleStreams) *
                                          (options.max_request_bytes + kMaxRequestOverheadBytes));
  // The rest is for bytes that arrive before the loop has seen them.
  limits.process_bytes = options.max_transport_bytes / 8 * 7;
  limits.message_timeout = options.connections.message_timeout;
  limits.min_bytes_per_second = options.connections.min_bytes_per_second;
  return limits;
}

ConnectionLoopOptions LoopOf(const ServerOptions& options, int metadata_bytes) {
  ConnectionLoopOptions loop;
  const std::int64_t descriptors = RaiseDescriptorLimit();
  if (options.tls != nullptr) {
    loop.min_tls_version = options.tls->policy().min_version == TlsVersion::k13 ? kTls13 : kTls12;
  }
  loop.limits =
      DecideLimits(options.connections.max_connections, options.connections.max_peer_connections,
                   descriptors, OpenDescriptors() + options.reserved_descriptors);
  if (options.connections.max_connections > loop.limits.connections) {
    spdlog::warn("--max_connections: {}, but {} descriptors are enough for {}",
                 options.connections.max_connections, descriptors, loop.limits.connections);
  }
  constexpr Duration kNoTimeout = std::chrono::hours(24 * 365);
  loop.handshake_timeout = options.connections.handshake_timeout > Duration(0)
                               ? options.connections.handshake_timeout
                               : kNoTimeout;
  if (options.max_connection_calls > 0) {
    const int streams = options.max_connection_calls + kMaxIdleStreams;
    loop.max_concurrent_streams = static_cast<std::uint32_t>(streams);
    // A cancelled stream exists until its handler has ended: an honest client has some of these
    // beside its allowed ones, never a thousand.
    loop.max_streams = streams + 1000;
  }
  loop.max_header_list_bytes = static_cast<std::uint32_t>(metadata_bytes);
  loop.traffic = TrafficOf(options);
  return loop;
}

// Adds its sockets to `listener`. Returns the address with the port in use; empty without one.
absl::StatusOr<std::string> ListenForAdmin(const std::string& address, Listener& listener) {
  if (address.empty()) return std::string();
  absl::StatusOr<Listener> admin = Listen(address, "admin_listen");
  if (!admin.ok()) return admin.status();
  listener.admin_sockets = admin->sockets.size();
  for (Descriptor& socket : admin->sockets) listener.sockets.push_back(std::move(socket));
  return admin->address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      absl::Span<const ServedService> services,
                                                      CallEnvironment& environment,
                                                      Readiness& readiness) {
  // For gRPC, the connection loop and a first connection.
  constexpr std::int64_t kLeastDescriptors = 16;
  if (absl::Status few = CheckDescriptorsLeft(kLeastDescriptors); !few.ok()) return few;
  absl::StatusOr<Listener> listener = ListenAtAll(options.listen);
  if (!listener.ok()) return listener.status();
  const absl::StatusOr<std::string> admin_address = ListenForAdmin(options.admin_listen, *listener);
  if (!admin_address.ok()) return admin_address.status();
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      options.tls != nullptr ? MakeTlsCredentials(*options.tls) : MakePlainCredentials();
  grpc::ServerBuilder builder;
  // Connections come from our own loop: gRPC's listener stops accepting after EMFILE, and has no
  // limits.
  std::unique_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  SetUpConnections(options, builder);
  const int metadata_bytes = HardMetadataBytes(environment.accept.limits.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, metadata_bytes);
  std::vector<std::string> names;
  for (const ServedService& served : services) {
    builder.RegisterService(served.service);
    names.push_back(served.name);
  }
  auto health = std::make_unique<HealthService>(environment.accept);
  builder.RegisterService(health.get());
  std::vector<std::string> reflected = names;
  reflected.push_back(grpc::health::v1::Health::service_full_name());
  auto reflection = std::make_unique<ReflectionServices>(environment.accept, std::move(reflected));
  builder.RegisterService(&reflection->v1);
  builder.RegisterService(&reflection->v1alpha);
  SetUpMessages(options, builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC cannot start");
  readiness.Attach(health.get(), std::move(names));
  std::unique_ptr<Server> made(new Server(std::move(health), std::move(server), std::move(acceptor),
                                          readiness, listener->address, listener->port));
  made->credentials_ = credentials;
  made->reflection_ = std::move(reflection);
  made->admin_address_ = *admin_address;
  ConnectionLoop::Callbacks callbacks;
  callbacks.take = [&to = *made->acceptor_](int socket, const std::string& first_bytes) {
    Acceptor::NewConnectionParameters connection;
    connection.fd = socket;
    if (!first_bytes.empty()) {
      const grpc::Slice slice(first_bytes);
      connection.read_buffer = grpc::ByteBuffer(&slice, 1);
    }
    to.HandleNewConnection(&connection);
  };
  callbacks.on_room = [&readiness](bool room) { readiness.SetRoom(room); };
  callbacks.streams_of = [&streams = made->streams_](const std::string& peer) {
    return streams.CountsOf(peer, std::chrono::steady_clock::now());
  };
  callbacks.heap_bytes = HeapBytes;
  callbacks.inside_bytes = [&admission = environment.accept.admission] {
    return admission.inflight_bytes();
  };
  made->loop_ = std::make_unique<ConnectionLoop>(
      LoopOf(options, metadata_bytes), *std::move(listener), std::move(callbacks),
      environment.accept.callers, environment.accept.metrics.ForConnections(RequestPort::kGrpc));
  return made;
}

Server::Server(std::unique_ptr<HealthService> health, std::unique_ptr<grpc::Server> server,
               std::unique_ptr<Acceptor> acceptor, Readiness& readiness, std::string address,
               int port)
    : health_(std::move(health)),
      server_(std::move(server)),
      acceptor_(std::move(acceptor)),
      readiness_(readiness),
      address_(std::move(address)),
      port_(port) {}

Server::~Server() { Shutdown(Duration(0)); }

void Server::CloseConnections(Duration grace) { loop_->CloseAll(grace); }

void Server::Shutdown(Duration grace) {
  readiness_.Detach();
  health_->Close();
  // Before gRPC stops: it would lose descriptors that it gets later.
  loop_.reset();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace normd

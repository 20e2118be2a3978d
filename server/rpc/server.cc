#include "server/rpc/server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      NormService& service, Readiness& readiness) {
  // A switch of the process, which gRPC reads when it builds a server.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  auto health = std::make_unique<HealthService>();
  builder.RegisterService(health.get());
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(options.max_request_bytes + kMaxRequestOverheadBytes));
  builder.SetMaxSendMessageSize(-1);
  if (options.max_connection_calls > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_connection_calls);
  }
  if (options.max_transport_bytes > 0) {
    grpc::ResourceQuota quota("normd");
    quota.Resize(static_cast<std::size_t>(options.max_transport_bytes));
    builder.SetResourceQuota(quota);
  }
  // gRPC checks a compressed message's size before it inflates it: a megabyte on the wire could
  // become a gigabyte in memory before anything of ours sees it. Tensors hardly compress anyway.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Two servers on one port would share the clients at random: the second shall fail.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("listen: ", options.listen, " cannot be bound (is the port in use?)"));
  }
  readiness.Attach(health.get());
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  return std::unique_ptr<Server>(new Server(std::move(health), std::move(server), readiness,
                                            absl::StrCat(host, ":", port), port));
}

Server::Server(std::unique_ptr<HealthService> health, std::unique_ptr<grpc::Server> server,
               Readiness& readiness, std::string address, int port)
    : health_(std::move(health)),
      server_(std::move(server)),
      readiness_(readiness),
      address_(std::move(address)),
      port_(port) {}

Server::~Server() { Shutdown(Duration(0)); }

void Server::Shutdown(Duration grace) {
  readiness_.Detach();
  health_->Close();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace normd

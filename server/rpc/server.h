// The gRPC server: its port, its channel settings, health and reflection.

#ifndef NORMD_SERVER_RPC_SERVER_H_
#define NORMD_SERVER_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server.h"
#include "server/base/clock.h"
#include "server/rpc/health_service.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/readiness.h"

namespace normd {

struct ServerOptions {
  std::string listen = "127.0.0.1:8001";  // Port 0: any free one.
  std::int64_t max_request_bytes = std::int64_t{256} << 20;
  // Calls of one connection at once; a client's further ones wait on its side, unsent. 0: gRPC's
  // default, which is no limit.
  int max_connection_calls = 0;
  // What gRPC may hold for messages on their way in and out, beside what our own budgets count: as
  // it fills up, gRPC closes the windows in which clients may send, and at the end it cancels calls
  // (RESOURCE_EXHAUSTED, without a retry hint). 0: no limit.
  std::int64_t max_transport_bytes = 0;
};

// What one message may hold beside its tensor. gRPC refuses a larger one unread, with
// RESOURCE_EXHAUSTED and without a retry hint; between the two, the service says INVALID_ARGUMENT.
inline constexpr std::int64_t kMaxRequestOverheadBytes = 4096;

// Serves from Start to Shutdown. Start and Shutdown are called by one thread.
class Server {
 public:
  // `service` and `readiness` outlive it. Unavailable, with the address, when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       NormService& service, Readiness& readiness);
  // Shuts down at once if Shutdown was not called.
  ~Server();

  // The address with the port in use.
  const std::string& address() const { return address_; }
  int port() const { return port_; }

  // Accepts no more calls, waits for those inside until `grace` has passed, then cancels the rest
  // and waits for them to end. Watches of the health service end with it.
  void Shutdown(Duration grace);

 private:
  Server(std::unique_ptr<HealthService> health, std::unique_ptr<grpc::Server> server,
         Readiness& readiness, std::string address, int port);

  std::unique_ptr<HealthService> health_;  // Outlives the server that it is registered with.
  std::unique_ptr<grpc::Server> server_;
  Readiness& readiness_;
  const std::string address_;
  const int port_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_SERVER_H_

// grpc.health.v1.Health. gRPC's own implementation never forgets a name, and models come and go.

#ifndef NORMD_SERVER_RPC_HEALTH_SERVICE_H_
#define NORMD_SERVER_RPC_HEALTH_SERVICE_H_

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/environment.h"

namespace normd {

// Raw, because a message may be compressed.
using HealthServiceBase = grpc::health::v1::Health::WithRawCallbackMethod_Check<
    grpc::health::v1::Health::WithRawCallbackMethod_Watch<grpc::health::v1::Health::Service>>;

// Thread-safe. Set, Forget and Close queue messages to watchers; they never block or call back.
// Outlives every call.
class HealthService final : public HealthServiceBase {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // `environment` outlives it.
  explicit HealthService(AcceptEnvironment& environment) : environment_(environment) {}

  void Set(const std::string& name, bool serving);
  // The name is unknown from here on, and takes no memory.
  void Forget(const std::string& name);
  // Ends every watch with UNAVAILABLE, including later ones.
  void Close();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* message,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* message) override;

 private:
  class Watcher;

  // Parses the request, whose name fits, and checks the caller's right. Everybody with a role may
  // ask about the server and its services; asking about a model needs the right to have it
  // described.
  absl::Status Accept(grpc::CallbackServerContext& context, const grpc::ByteBuffer& message,
                      absl::string_view method,
                      grpc::health::v1::HealthCheckRequest& request) const;
  Status StatusOf(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AcceptEnvironment& environment_;
  // Held while writes are started: that only queues them, and they complete on gRPC's threads.
  Mutex mutex_;
  std::map<std::string, bool, std::less<>> serving_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<Watcher*>> watchers_ ABSL_GUARDED_BY(mutex_);  // By name.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_HEALTH_SERVICE_H_

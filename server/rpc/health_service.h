// grpc.health.v1.Health. gRPC's own never forgets a name, and models come and go.

#ifndef NORMD_SERVER_RPC_HEALTH_SERVICE_H_
#define NORMD_SERVER_RPC_HEALTH_SERVICE_H_

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/environment.h"

namespace normd {

// Thread-safe. Set, Forget and Close queue messages to watchers; they block on nothing and call
// nobody back. Outlives every call.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // `environment` outlives it.
  explicit HealthService(AcceptEnvironment& environment) : environment_(environment) {}

  void Set(const std::string& name, bool serving);
  // The name is unknown from here on, and takes no memory.
  void Forget(const std::string& name);
  // Ends every watch with UNAVAILABLE, also those that come later.
  void Close();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;

  void CountReceived(grpc::CallbackServerContext& context,
                     const grpc::health::v1::HealthCheckRequest& request);
  // Of the server and its services everybody with a role may ask, of a model whoever may have it
  // described.
  grpc::Status CheckRight(grpc::CallbackServerContext& context,
                          const grpc::health::v1::HealthCheckRequest& request,
                          absl::string_view method);
  Status StatusOf(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AcceptEnvironment& environment_;
  // Held while writes are started: they only queue, and what they complete comes on gRPC's threads.
  Mutex mutex_;
  std::map<std::string, bool, std::less<>> serving_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<Watcher*>> watchers_ ABSL_GUARDED_BY(mutex_);  // By name.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_HEALTH_SERVICE_H_

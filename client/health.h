// The standard health protocol, grpc.health.v1.
// Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md

#ifndef NORMD_CLIENT_HEALTH_H_
#define NORMD_CLIENT_HEALTH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace normd::client {

// Values are the protocol's.
enum class HealthStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// "SERVING" and so on, as the protocol spells them.
const char* Name(HealthStatus status);

// Client::CheckHealth and Client::WatchHealth over a channel; `context` has the deadline. Returns
// gRPC's status unchanged.
grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context, const std::string& service,
                         HealthStatus* status);
// Client::CheckHealthAsync.
using HealthDone = absl::AnyInvocable<void(absl::StatusOr<HealthStatus>) &&>;
void CheckHealthAsync(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                      std::chrono::system_clock::time_point deadline,
                      absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done);
grpc::Status WatchHealth(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context, const std::string& service,
                         const std::function<bool(HealthStatus)>& on_change);

}  // namespace normd::client

#endif  // NORMD_CLIENT_HEALTH_H_

// The standard health protocol, grpc.health.v1.
// Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md

#ifndef NORMD_CLIENT_HEALTH_H_
#define NORMD_CLIENT_HEALTH_H_

#include <functional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "grpcpp/generic/generic_stub.h"

namespace normd::client {

// Values are the protocol's.
enum class HealthStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// "SERVING" and so on, as the protocol spells them.
const char* Name(HealthStatus status);

// Client::CheckHealthAsync and Client::WatchHealth; both give gRPC's status unchanged.
using HealthDone = absl::AnyInvocable<void(absl::StatusOr<HealthStatus>) &&>;
void CheckHealthAsync(grpc::GenericStub& stub, const std::string& service, Duration timeout,
                      absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done);
grpc::Status WatchHealth(grpc::GenericStub& stub, const std::string& service, Duration timeout,
                         const std::function<bool(HealthStatus)>& on_change);

}  // namespace normd::client

#endif  // NORMD_CLIENT_HEALTH_H_

// Converts a client's status to gRPC's, once, at the edge.

#ifndef NORMD_SERVER_RPC_STATUS_H_
#define NORMD_SERVER_RPC_STATUS_H_

#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace normd {

// As a status's time for a retry: none succeeds, and its client gets no hint.
inline constexpr Duration kNoRetry = Duration::max();

// `status` is the client's (see ForClient). Adds `grpc-retry-pushback-ms` to the trailing metadata
// of `context`, which has not been sent yet: for RESOURCE_EXHAUSTED `retry_after`, or longer if the
// status says so (RetryAfter); for other codes the status's own time, if it has one. Without memory
// the code is left, and perhaps the hint.
grpc::Status ToGrpc(const absl::Status& status, Duration retry_after,
                    grpc::CallbackServerContext& context);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STATUS_H_

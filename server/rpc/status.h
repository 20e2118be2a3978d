// From the server's Status to gRPC's, once, at the edge.

#ifndef NORMD_SERVER_RPC_STATUS_H_
#define NORMD_SERVER_RPC_STATUS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace normd {

// The status that the client sees. INTERNAL and UNKNOWN are our own faults: their message goes to
// the log and the client gets a general one. RESOURCE_EXHAUSTED adds `grpc-retry-pushback-ms` to
// the trailing metadata of `context`, which has not been sent yet. The log line tells the
// `request_id`, if there is one.
grpc::Status ToGrpc(const absl::Status& status, Duration retry_after,
                    grpc::CallbackServerContext& context, absl::string_view request_id = "");

// Runs `body` and turns what it throws into a status: std::bad_alloc into ResourceExhausted,
// anything else into Internal.
absl::Status CatchAll(absl::FunctionRef<absl::Status()> body);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STATUS_H_

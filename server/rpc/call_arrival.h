// What gRPC tells of a call before its first message.

#ifndef NORMD_SERVER_RPC_CALL_ARRIVAL_H_
#define NORMD_SERVER_RPC_CALL_ARRIVAL_H_

#include <map>
#include <memory>

#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"
#include "server/accept/call_context.h"
#include "server/accept/environment.h"
#include "server/accept/request_ids.h"
#include "server/callers/callers.h"
#include "server/metrics/metrics.h"

namespace normd {

// From the metadata `x-request-id` and `traceparent`. The first of several values of a key counts.
RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Null for a call that came over no transport.
std::shared_ptr<Caller> CallerOf(grpc::CallbackServerContext& context, Callers& callers);

// The call's time, caller, deadline and ids. The ids are repeated in its trailing metadata, under
// the keys that they came with, so this comes before the call is finished.
CallArrival ArrivalOf(grpc::CallbackServerContext& context, Method method,
                      AcceptEnvironment& environment);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_ARRIVAL_H_

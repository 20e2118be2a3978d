// What gRPC tells of a call before its first message.

#ifndef NORMD_SERVER_RPC_CALL_ARRIVAL_H_
#define NORMD_SERVER_RPC_CALL_ARRIVAL_H_

#include <map>

#include "base/clock.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"
#include "server/accept/call_context.h"
#include "server/accept/request_ids.h"
#include "server/metrics/metrics.h"

namespace normd {

// From the metadata `x-request-id` and `traceparent`. The first of several values of a key counts.
RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// The call's time, peer, deadline and ids. The ids are repeated in its trailing metadata, under the
// keys that they came with, so this comes before the call is finished.
CallArrival ArrivalOf(grpc::CallbackServerContext& context, Method method, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_ARRIVAL_H_

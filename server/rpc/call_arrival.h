// gRPC's information about a call before its first message.

#ifndef NORMD_SERVER_RPC_CALL_ARRIVAL_H_
#define NORMD_SERVER_RPC_CALL_ARRIVAL_H_

#include <grpc/support/time.h>

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"
#include "server/accept/authorizer.h"
#include "server/accept/call_context.h"
#include "server/accept/environment.h"
#include "server/accept/request_ids.h"
#include "server/callers/callers.h"
#include "server/identity/identity.h"
#include "server/metrics/metrics.h"

namespace normd {

// A call's deadline on the server's clock: kNever for a call without one, and for one that is years
// away.
TimePoint DeadlineOf(gpr_timespec deadline, const Clock& clock);

// From the metadata `x-request-id` and `traceparent`. The first of several values of a key counts.
RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// The call's identity, by its metadata and its client's certificate; see Authorizer::Recognise.
Recognised IdentityOf(grpc::CallbackServerContext& context, const AcceptEnvironment& environment);

// A call without a CallContext: its purpose, under its name in the audit log.
struct PlainCall {
  absl::string_view method;
  Right right = Right::kHealth;
  absl::string_view model;  // For kDescribe.
};
// See Authorizer::Check and Authorizer::CheckModel. Counts the call with its identity.
absl::Status CheckPlainCall(grpc::CallbackServerContext& context, AcceptEnvironment& environment,
                            const PlainCall& call);

// Null for a call without a transport.
std::shared_ptr<Caller> CallerOf(grpc::CallbackServerContext& context, Callers& callers);

// Counts the call's metadata as delivered by `caller`, which may be null. InvalidArgument, with its
// largest key, when there is more than --max_metadata_bytes.
absl::Status TakeMetadata(const grpc::CallbackServerContext& context, Caller* caller,
                          const AcceptEnvironment& environment);

// The call's time, caller, identity, deadline and ids. The ids are repeated in its trailing
// metadata, under the keys with which they came, so this comes before the call is finished.
CallArrival ArrivalOf(grpc::CallbackServerContext& context, Method method,
                      AcceptEnvironment& environment);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CALL_ARRIVAL_H_

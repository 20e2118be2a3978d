// The checks that every request passes, on every front end, in one order and one wording.

#ifndef NORMD_SERVER_ACCEPT_ACCEPT_H_
#define NORMD_SERVER_ACCEPT_ACCEPT_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/accept/call_context.h"
#include "server/accept/description.h"
#include "server/accept/environment.h"
#include "server/accept/inputs.h"
#include "server/accept/region_tensors.h"
#include "server/accept/stream_plan.h"
#include "server/batching/admission.h"
#include "server/batching/request.h"

namespace normd {

// A request that has passed every check, with its share of the budgets.
struct AcceptedRequest {
  CheckedInputs inputs;
  RequestOptions options;
  Priority priority = Priority::kNormal;
  Duration queue_timeout = Duration::max();
  TimeoutField timeout_field = TimeoutField::kQueueTimeoutNs;
  PlacedOutputs outputs;
  RegionTensors in_regions;
  std::optional<StreamPlan> stream;  // For a request whose data comes in chunks.
  bool was_held = false;  // Part of it came before: a stop in between does not refuse it.
  Admission::Lease lease;

  const Geometry& geometry() const { return inputs.geometry; }
};

// Judges a request, which then belongs to `call`, and fills `accepted`. The first failed check
// decides the error:
//
//   0. whether the caller may (see Authorizer)       Unauthenticated, PermissionDenied,
//                                                    ResourceExhausted
//   1. the model's name and version                  InvalidArgument, NotFound
//   2. the inputs: names, then types and shapes      InvalidArgument
//   3. priority, queue_timeout_ns, the operation's   InvalidArgument
//      options
//   4. the outputs' names and memory                 InvalidArgument
//      the data: each input's bytes, then the limit, InvalidArgument
//      then indexes, but for those in regions;
//      then the regions                              see FindRegionTensors
//      in chunks: none yet, and a row fits the window
//   5. the budgets (see Admission)                   Unavailable, ResourceExhausted, and
//                                                    InvalidArgument for what exceeds them alone
//   6. indexes in regions, which are copied only now InvalidArgument
//
// A message names the field, what came and what was wanted. A refused request holds neither regions
// nor budgets. From step 2 on the call counts with the model. Never blocks.
absl::Status AcceptRequest(AcceptEnvironment& environment, CallContext& call,
                           const RequestDescription& request, AcceptedRequest& accepted);

// Steps 0, of the model, and 1 of it alone, for a request that names its model and cannot be read
// further: the call then counts with the model.
absl::Status AcceptModel(AcceptEnvironment& environment, CallContext& call,
                         const RequestDescription& request);

// A request for the queue: all of `accepted`, or a piece of it with `geometry`. The caller adds the
// inputs with their owner, and `done`; `call` and `accepted`, which holds the regions, live until
// that has run.
std::unique_ptr<Request> MakeRequest(AcceptEnvironment& environment, CallContext& call,
                                     const AcceptedRequest& accepted, const Geometry& geometry);

// Gives the request its inputs: those of the description, and those in regions.
void MoveInputs(RequestDescription& description, const AcceptedRequest& accepted, Request& request);

// The response to all of `accepted`, from a completion whose status is OK. Internal for an output
// of the wrong size.
absl::StatusOr<ResponseDescription> MakeResponse(const CallContext& call,
                                                 const AcceptedRequest& accepted,
                                                 Completion& completion);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_ACCEPT_H_

#include "server/accept/accept.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

absl::Status CheckOptions(const Model& model, const RequestDescription& request,
                          AcceptedRequest& accepted) {
  if (!request.priority.ok()) return request.priority.status();
  accepted.priority = *request.priority;
  if (request.queue_timeout_ns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue_timeout_ns: ", request.queue_timeout_ns, ", wanted 0 or more"));
  }
  accepted.timeout_field = request.timeout_field;
  if (request.queue_timeout_ns > 0) accepted.queue_timeout = Duration(request.queue_timeout_ns);
  const absl::StatusOr<RequestOptions> options = model.CheckOptions(request.options);
  if (!options.ok()) return options.status();
  accepted.options = *options;
  return absl::OkStatus();
}

absl::Status CheckExtent(const AcceptEnvironment& environment, const CallContext& call,
                         const RequestDescription& request, AcceptedRequest& accepted) {
  const Model& model = *call.model();
  const std::int64_t max_bytes = environment.limits.max_request_bytes;
  const bool names_regions = NamesRegions(request);
  absl::StatusOr<PlacedOutputs> outputs = PlaceOutputs(model, request, accepted.inputs);
  if (!outputs.ok()) return outputs.status();
  accepted.outputs = *std::move(outputs);
  if (!request.in_chunks) {
    // If tensors lie in regions, FindRegionTensors checks the size: only the region bounds tensors
    // on a device.
    absl::Status status =
        CheckData(model, request.inputs, accepted.inputs,
                  names_regions ? std::numeric_limits<std::int64_t>::max() : max_bytes);
    if (!status.ok()) return status;
    absl::StatusOr<RegionTensors> in_regions =
        FindRegionTensors({environment.regions, call.owner(), max_bytes}, model, request,
                          accepted.inputs, accepted.outputs);
    if (!in_regions.ok()) return in_regions.status();
    accepted.in_regions = *std::move(in_regions);
    return absl::OkStatus();
  }
  if (absl::Status status = CheckNoData(request); !status.ok()) return status;
  StreamLimits limits = environment.limits.stream;
  limits.max_message_bytes = max_bytes;
  absl::StatusOr<StreamPlan> plan = PlanStream(model, accepted.inputs, limits);
  if (!plan.ok()) return plan.status();
  accepted.stream = *plan;
  return absl::OkStatus();
}

// The bytes that the server holds for the tensors. Shared memory is the client's, but indexes there
// are copied, and so may be an unaligned input.
std::int64_t HeldBytes(const Model& model, const AcceptedRequest& accepted) {
  const Geometry& geometry = accepted.geometry();
  std::int64_t held = geometry.workspace_bytes;
  for (std::size_t k = 0; k < geometry.inputs.size(); ++k) {
    const TensorSize& input = geometry.inputs[k];
    const auto& shared = accepted.in_regions.inputs;
    const bool in_place =
        !shared.empty() && !shared[k].bytes.empty() && model.inputs()[k].values == 0 &&
        reinterpret_cast<std::uintptr_t>(shared[k].bytes.data()) % norm::SizeOf(input.dtype) == 0;
    if (!in_place) held += input.bytes;
  }
  for (std::size_t k = 0; k < geometry.outputs.size(); ++k) {
    const auto& shared = accepted.in_regions.outputs;
    if (shared.empty() || !shared[k].has_value()) held += geometry.outputs[k].bytes;
  }
  return held;
}

absl::Status Admit(AcceptEnvironment& environment, const CallContext& call,
                   AcceptedRequest& accepted) {
  const Geometry& geometry = accepted.geometry();
  absl::StatusOr<Admission::Lease> lease;
  if (accepted.stream.has_value()) {
    const std::int64_t chunk_bytes =
        std::min(accepted.stream->limits.max_chunk_bytes(), geometry.InputBytes());
    lease = environment.admission.AdmitStream(HeldBytes(geometry, chunk_bytes), call.metrics(),
                                              call.account());
  } else {
    lease = environment.admission.Admit(HeldBytes(*call.model(), accepted), call.metrics(),
                                        accepted.was_held ? Needs::kLaneOfHeld : Needs::kLane,
                                        call.account());
  }
  if (!lease.ok()) return lease.status();
  accepted.lease = *std::move(lease);
  return absl::OkStatus();
}

absl::Status Judge(AcceptEnvironment& environment, CallContext& call,
                   const RequestDescription& request, AcceptedRequest& accepted) {
  absl::Status status = call.Authorize();
  if (status.ok()) status = AcceptModel(environment, call, request);
  if (!status.ok()) return status;
  const Model& model = *call.model();
  if (status = CheckInputs(model, request.inputs, accepted.inputs); !status.ok()) return status;
  call.SetInputBytes(accepted.geometry().InputBytes());
  if (status = CheckOptions(model, request, accepted); !status.ok()) return status;
  if (status = CheckExtent(environment, call, request, accepted); !status.ok()) return status;
  if (status = Admit(environment, call, accepted); !status.ok()) return status;
  // Only now: a refused request costs no copy, and the copies are in the budgets.
  return CopyIndexes(model, accepted.in_regions);
}

}  // namespace

absl::Status AcceptModel(AcceptEnvironment& environment, CallContext& call,
                         const RequestDescription& request) {
  if (absl::Status status = call.AuthorizeModel(request.model); !status.ok()) return status;
  std::int64_t version = request.version;
  if (!request.version_alias.empty()) {
    const auto named = environment.registry.VersionOfAlias(request.model, request.version_alias);
    if (!named.ok()) return named.status();
    version = *named;
  }
  auto model = environment.registry.FindForRequest(request.model, version);
  if (!model.ok()) return model.status();
  call.SetModel(*std::move(model));
  return absl::OkStatus();
}

absl::Status AcceptRequest(AcceptEnvironment& environment, CallContext& call,
                           const RequestDescription& request, AcceptedRequest& accepted) {
  absl::Status status = Judge(environment, call, request, accepted);
  if (status.ok()) return status;
  // Released before the client is told, so that it uses no region any more.
  accepted.in_regions = RegionTensors();
  accepted.lease = Admission::Lease();
  return status;
}

std::unique_ptr<Request> MakeRequest(AcceptEnvironment& environment, CallContext& call,
                                     const AcceptedRequest& accepted, const Geometry& geometry) {
  auto request = std::make_unique<Request>();
  request->id = environment.next_request_id.fetch_add(1, std::memory_order_relaxed);
  request->model = call.model();
  request->dtype = accepted.inputs.dtype;
  request->options = accepted.options;
  request->geometry = geometry;
  request->deadline = call.deadline();
  request->priority = accepted.priority;
  request->queue_timeout = accepted.queue_timeout;
  request->timeout_field = accepted.timeout_field;
  const CallAccount account = call.account();
  request->holder = account.party != nullptr ? account.party->id : 0;
  request->may_run_inline = call.model()->runs_inline();
  request->cancelled = call.cancellation();
  request->outputs = accepted.outputs.memory;
  return request;
}

void MoveInputs(RequestDescription& description, const AcceptedRequest& accepted,
                Request& request) {
  const auto& shared = accepted.in_regions.inputs;
  for (std::size_t k = 0; k < accepted.inputs.places.size(); ++k) {
    InputMemory& input = request.inputs.emplace_back();
    if (!shared.empty() && !shared[k].bytes.empty()) {
      input.views.push_back(shared[k].bytes);
      input.place = shared[k].place;
    } else {
      input = std::move(description.inputs[accepted.inputs.places[k]].data);
    }
  }
}

absl::StatusOr<ResponseDescription> MakeResponse(const CallContext& call,
                                                 const AcceptedRequest& accepted,
                                                 Completion& completion) {
  const Model& model = *call.model();
  if (completion.outputs.size() != accepted.inputs.outputs.size()) {
    return absl::InternalError(absl::StrCat("outputs: ", completion.outputs.size(), ", wanted ",
                                            accepted.inputs.outputs.size()));
  }
  ResponseDescription response;
  response.model = model.name();
  response.version = model.version();
  response.stages = completion.stages;
  response.batch = &completion.batch;
  response.outputs_by_name = accepted.outputs.by_name;
  for (std::size_t k = 0; k < accepted.inputs.outputs.size(); ++k) {
    if (!accepted.outputs.Has(k)) continue;
    const TensorType& type = accepted.inputs.outputs[k];
    OutputDescription& output = response.outputs.emplace_back();
    output.name = model.outputs()[k].name;
    output.dtype = type.dtype;
    output.shape = type.shape.dims();
    output.bytes = accepted.geometry().outputs[k].bytes;
    output.data = std::move(completion.outputs[k]);
    const auto& shared = accepted.in_regions.outputs;
    if (!shared.empty() && shared[k].has_value()) output.region = &*shared[k];
    const auto& memory = accepted.outputs.memory;
    const bool elsewhere = !memory.empty() && memory[k].bytes.data() != nullptr;
    if (elsewhere || static_cast<std::int64_t>(output.data.size()) == output.bytes) continue;
    return absl::InternalError(absl::StrCat("output \"", output.name, "\": ", output.data.size(),
                                            " bytes, wanted ", output.bytes));
  }
  return response;
}

}  // namespace normd

#include "server/accept/exchange.h"

#include "absl/strings/str_cat.h"
#include "server/accept/client_status.h"

namespace normd {

namespace {

// The tensors alone may fit.
absl::Status WithWhatCounts(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), " (JSON and inflated bytes count beside tensors)"));
}

}  // namespace

absl::Status Exchange::Receive(std::int64_t message_bytes) {
  environment_.metrics.AddPayload(message_bytes, 0);
  call_.CountReceived(message_bytes);
  // AcceptRequest asks again, which costs nothing.
  return call_.Authorize();
}

absl::Status Exchange::Hold(std::int64_t bytes) {
  Admission& admission = environment_.admission;
  // An accepted request is not refused by a stop.
  if (accepted_.lease.active()) {
    return WithWhatCounts(admission.TakeMore(accepted_.lease, bytes, call_.metrics()));
  }
  if (!held_.active()) {
    absl::StatusOr<Admission::Lease> lease =
        admission.Admit(0, call_.metrics(), Needs::kOpenServer, call_.account());
    if (!lease.ok()) return lease.status();
    held_ = *std::move(lease);
  }
  return WithWhatCounts(admission.TakeMore(held_, bytes, call_.metrics()));
}

absl::StatusOr<std::unique_ptr<Request>> Exchange::Accept(RequestDescription&& description) {
  id_ = std::move(description.id);
  decoded_ = std::move(description.owner);
  // Each byte and each request counts once: a message that fits uncompressed fits compressed.
  accepted_.was_held = held_.active();
  LetHeldGo();
  absl::Status status = AcceptRequest(environment_, call_, description, accepted_);
  if (!status.ok()) return status;

  std::unique_ptr<Request> request =
      MakeRequest(environment_, call_, accepted_, accepted_.geometry());
  MoveInputs(description, accepted_, *request);
  // The exchange outlives the request's use of the message, of the decoded data and of regions.
  request->input_owner = std::shared_ptr<void>(std::shared_ptr<void>(), this);
  request_id_ = request->id;
  request->arrival = call_.arrival();
  request->stages[Stage::kDecode] = environment_.clock.Now() - call_.arrival();
  return request;
}

absl::Status Exchange::End(
    Completion& completion,
    absl::FunctionRef<absl::StatusOr<std::int64_t>(ResponseDescription&&)> encode) {
  absl::Status status = completion.status;
  if (status.ok()) status = CatchAll([&] { return Answer(completion, encode); });
  // Before the client is told, because it may then do anything with its memory.
  accepted_.in_regions = RegionTensors();
  return status;
}

absl::Status Exchange::Answer(
    Completion& completion,
    absl::FunctionRef<absl::StatusOr<std::int64_t>(ResponseDescription&&)> encode) {
  const TimePoint begin = environment_.clock.Now();
  const RegionTensors& in_regions = accepted_.in_regions;
  if (in_regions.any()) {
    RegionMetrics& metrics = environment_.metrics.ForRegions();
    if (absl::Status status = in_regions.CheckWhole(); !status.ok()) {
      metrics.RecordBroken();
      return status;
    }
    const auto count = [&metrics](RegionMemory memory, const RegionTensors::Sum& sum) {
      if (sum.input_bytes + sum.output_bytes == 0) return;
      metrics.AddTensors(memory, sum.input_bytes, sum.output_bytes);
    };
    count(RegionMemory::kHost, in_regions.on_host);
    count(RegionMemory::kDevice, in_regions.on_device);
  }
  absl::StatusOr<ResponseDescription> description = MakeResponse(call_, accepted_, completion);
  if (!description.ok()) return description.status();
  description->id = id_;
  const absl::StatusOr<std::int64_t> response_bytes = encode(*std::move(description));
  if (!response_bytes.ok()) return response_bytes.status();
  environment_.metrics.AddPayload(0, *response_bytes);
  completion.stages[Stage::kEncode] = environment_.clock.Now() - begin;
  call_.metrics().RecordStages(completion.stages, completion.batch.requests);
  return absl::OkStatus();
}

}  // namespace normd

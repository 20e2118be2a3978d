#include "server/rpc/exchange.h"

#include <utility>

#include "server/accept/client_status.h"
#include "server/rpc/received_message.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Request>> Exchange::Accept(grpc::CallbackServerContext& context,
                                                          const grpc::ByteBuffer& message) {
  absl::StatusOr<std::unique_ptr<Request>> request = Judge(context, message);
  if (!request.ok()) {
    // The client may take its time to read the reason.
    slices_.clear();
    inflated_ = Admission::Lease();
  }
  return request;
}

// Takes bytes while a message is inflated. The request's own lease later counts its inputs, which
// lie there.
absl::Status Exchange::TakeInflated(std::int64_t bytes) {
  Admission& admission = environment_.admission;
  if (!inflated_.active()) {
    absl::StatusOr<Admission::Lease> lease =
        admission.Admit(0, call_.metrics(), Needs::kNothing, call_.account());
    if (!lease.ok()) return lease.status();
    inflated_ = *std::move(lease);
  }
  return admission.TakeMore(inflated_, bytes, call_.metrics());
}

absl::StatusOr<std::unique_ptr<Request>> Exchange::Judge(grpc::CallbackServerContext& context,
                                                         const grpc::ByteBuffer& message) {
  const auto message_bytes = static_cast<std::int64_t>(message.Length());
  environment_.metrics.AddPayload(message_bytes, 0);
  call_.CountReceived(message_bytes);
  // Before any of the message is read; AcceptRequest asks again, which costs nothing.
  if (absl::Status allowed = call_.Authorize(); !allowed.ok()) return allowed;
  const auto take = [this](std::int64_t bytes) { return TakeInflated(bytes); };
  const absl::StatusOr<MessageViews> views = OpenMessage(
      context, message, {environment_.limits.max_request_bytes + kMaxRequestOverheadBytes, take},
      slices_);
  if (!views.ok()) return views.status();
  absl::StatusOr<RequestDescription> description = codec_.Decode(*views);
  if (!description.ok()) {
    id_ = codec_.IdOf(*views);
    return description.status();
  }
  id_ = std::move(description->id);
  decoded_ = std::move(description->owner);
  // Each byte and each request counts once: a message that fits uncompressed fits compressed.
  inflated_ = Admission::Lease();
  absl::Status status = AcceptRequest(environment_, call_, *description, accepted_);
  if (!status.ok()) return status;

  std::unique_ptr<Request> request =
      MakeRequest(environment_, call_, accepted_, accepted_.geometry());
  MoveInputs(*description, accepted_, *request);
  // The exchange outlives the request's use of the slices, of the decoded data and of regions.
  request->input_owner = std::shared_ptr<void>(std::shared_ptr<void>(), this);
  request_id_ = request->id;
  request->arrival = call_.arrival();
  request->stages[Stage::kDecode] = environment_.clock.Now() - call_.arrival();
  return request;
}

absl::Status Exchange::End(Completion& completion, grpc::ByteBuffer& response) {
  absl::Status status = completion.status;
  if (status.ok()) status = CatchAll([&] { return Answer(completion, response); });
  // Before the client is told, because it may then do anything with its memory.
  accepted_.in_regions = RegionTensors();
  return status;
}

absl::Status Exchange::Answer(Completion& completion, grpc::ByteBuffer& response) {
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
  // grpc::ByteBuffer copies instead of moving.
  grpc::ByteBuffer encoded = codec_.Encode(*std::move(description));
  response.Swap(&encoded);
  environment_.metrics.AddPayload(0, static_cast<std::int64_t>(response.Length()));
  completion.stages[Stage::kEncode] = environment_.clock.Now() - begin;
  call_.metrics().RecordStages(completion.stages, completion.batch.requests);
  return absl::OkStatus();
}

}  // namespace normd

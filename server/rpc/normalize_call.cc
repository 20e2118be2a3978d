#include "server/rpc/normalize_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/caller_name.h"
#include "server/rpc/compression.h"
#include "server/rpc/status.h"
#include "wire/grpc_slices.h"
#include "wire/normalize_response.h"

namespace normd {
namespace {

// A non-owning pointer in the shape of an owning one: the call outlives the request's use of it.
template <typename T>
std::shared_ptr<T> Borrow(T* object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), object);
}

}  // namespace

NormalizeCall::NormalizeCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                             const grpc::ByteBuffer& message, grpc::ByteBuffer& answer)
    : environment_(environment),
      context_(context),
      message_(message),
      answer_(answer),
      arrival_(environment.clock.Now()),
      ids_(EchoRequestIds(context)),
      metrics_(&environment.metrics.ForNoModel()) {
  environment_.active.Enter();
}

void NormalizeCall::Start() {
  const absl::Status status = CatchAll([this] { return Accept(); });
  if (!status.ok()) End(status);
}

absl::Status NormalizeCall::Accept() {
  const std::int64_t message_bytes = static_cast<std::int64_t>(message_.Length());
  environment_.metrics.AddPayload(message_bytes, 0);
  environment_.delivered.Record(context_.peer(), message_bytes);
  const absl::Status uncompressed = CheckUncompressed(context_);
  if (!uncompressed.ok()) return uncompressed;
  if (!message_.Dump(&slices_).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  absl::StatusOr<NormalizeRequestView> view = DecodeNormalizeRequest(ViewsOf(slices_));
  if (!view.ok()) return view.status();
  absl::Status status = Check(*view);
  if (!status.ok()) return status;
  const absl::StatusOr<Queueing> queueing = CheckQueueing(*view);
  if (!queueing.ok()) return queueing.status();
  queueing_ = *queueing;
  const absl::StatusOr<norm::Precision> precision = CheckPrecision(*model_, view->precision);
  if (!precision.ok()) return precision.status();
  precision_ = *precision;
  const CallerName caller(context_);
  auto lease = environment_.admission.Admit(inputs_.geometry.InputBytes() + inputs_.geometry.bytes,
                                            *metrics_, Needs::kLane, caller.caller());
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  std::unique_ptr<Request> request = MakeRequest(*view);
  request->holder = HolderOf(caller.caller());
  request->stages[Stage::kDecode] = environment_.clock.Now() - arrival_;
  // After an accepted Push the call may be over: nothing of it is touched any more.
  return environment_.queue.Push(request);
}

absl::Status NormalizeCall::Check(const NormalizeRequestView& view) {
  absl::Status status = CheckModelName(view.model);
  if (!status.ok()) return status;
  auto model = environment_.registry.Find(view.model, view.version);
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  metrics_ = &model_->metrics();

  auto inputs = CheckInputs(*model_, view.inputs, environment_.options.max_request_bytes);
  if (!inputs.ok()) return inputs.status();
  inputs_ = *std::move(inputs);
  return absl::OkStatus();
}

std::unique_ptr<Request> NormalizeCall::MakeRequest(NormalizeRequestView& view) {
  id_ = environment_.next_request_id.fetch_add(1, std::memory_order_relaxed);
  auto request = std::make_unique<Request>();
  request->id = id_;
  request->model = model_;
  request->dtype = inputs_.dtype;
  request->precision = precision_;
  request->geometry = inputs_.geometry;
  for (std::size_t k = 0; k < model_->input_names().size(); ++k) {
    request->inputs.push_back(std::move(view.inputs[inputs_.places[k]].data));
  }
  request->input_owner = Borrow<void>(this);
  request->arrival = arrival_;
  request->deadline = DeadlineOf(context_, environment_.clock);
  request->priority = queueing_.priority;
  request->queue_timeout = queueing_.timeout;
  // The cost of a matrix product is not in proportion to its bytes.
  request->may_run_inline = model_->linear() == nullptr;
  request->cancelled = Borrow(&cancelled_);
  request->done = [this](Completion completion) { Complete(std::move(completion)); };
  return request;
}

void NormalizeCall::Complete(Completion completion) {
  const absl::Status status =
      completion.status.ok() ? CatchAll([&] { return Answer(completion); }) : completion.status;
  if (environment_.request_log != nullptr) {
    stages_ = completion.stages;
    batch_ = std::move(completion.batch);
  }
  End(status);
}

absl::Status NormalizeCall::Answer(Completion& completion) {
  const TimePoint begin = environment_.clock.Now();
  const std::int64_t bytes = inputs_.geometry.bytes;
  if (static_cast<std::int64_t>(completion.output.size()) != bytes) {
    return absl::InternalError(
        absl::StrCat("output: ", completion.output.size(), " bytes, wanted ", bytes));
  }
  NormalizeResponseHead head;
  head.model = model_->name();
  head.version = model_->version();
  for (std::size_t i = 0; i < head.stage_ns.size(); ++i) {
    head.stage_ns[i] = completion.stages[static_cast<Stage>(i)].count();
  }
  head.batch_id = completion.batch.id;
  head.batch_requests = completion.batch.requests;
  head.batch_bytes = completion.batch.bytes;
  head.lane = completion.batch.lane;
  const TensorHeader output{"", ToProto(inputs_.dtype), inputs_.output_shape.dims(), bytes};
  head.outputs = {&output, 1};
  const EncodedMessage encoded = EncodeNormalizeResponse(head);
  const ConstBytes computed(completion.output.data(), completion.output.size());
  const grpc::Slice data = SliceHolding(computed, std::move(completion.output));
  answer_ = Assemble(encoded, {&data, 1});
  environment_.metrics.AddPayload(0, static_cast<std::int64_t>(answer_.Length()));
  completion.stages[Stage::kEncode] = environment_.clock.Now() - begin;
  metrics_->RecordStages(completion.stages);
  return absl::OkStatus();
}

void NormalizeCall::End(const absl::Status& status) {
  // As the client sees it.
  code_ = absl::IsUnknown(status) ? absl::StatusCode::kInternal : status.code();
  const grpc::Status answer =
      ToGrpc(status, environment_.options.retry_after, context_, ids_.request_id);
  // After Finish the call may be over.
  environment_.responses.Add(response_, context_.c_call(),
                             environment_.options.ResponsePatience(answer_.Length()));
  Finish(answer);
}

void NormalizeCall::OnCancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  environment_.queue.Cancel(id_);
}

void NormalizeCall::OnDone() {
  if (environment_.responses.Remove(response_)) code_ = absl::StatusCode::kDeadlineExceeded;
  const Duration duration = environment_.clock.Now() - arrival_;
  metrics_->RecordRequest(Method::kNormalize, code_, duration);
  if (environment_.request_log != nullptr) Log(duration);
  CallEnvironment& environment = environment_;
  delete this;  // Returns the lease.
  environment.active.Leave();
}

void NormalizeCall::Log(Duration duration) {
  const RequestLog::Reason reason = environment_.request_log->Pick(duration);
  if (reason == RequestLog::Reason::kNone) return;
  environment_.request_log->Write(
      reason, {"Normalize", ids_, model_ != nullptr ? absl::string_view(model_->name()) : "",
               model_ != nullptr ? model_->version() : 0, code_, duration, stages_, batch_,
               context_.peer(), inputs_.geometry.InputBytes()});
}

}  // namespace normd

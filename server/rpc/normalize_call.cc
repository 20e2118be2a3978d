#include "server/rpc/normalize_call.h"

#include <memory>
#include <utility>

#include "server/accept/client_status.h"
#include "server/rpc/received_message.h"

namespace normd {

grpc::ServerUnaryReactor* NormalizeCall::Begin(CallEnvironment& environment,
                                               grpc::CallbackServerContext& context, Method method,
                                               UnaryMessages messages) {
  auto* call = NewCall<NormalizeCall>(environment, context, method, messages);
  if (call == nullptr) return OutOfMemory(context);
  call->Start();
  return call;
}

void NormalizeCall::Start() {
  const absl::Status status = CatchAll([this] { return Accept(); });
  if (!status.ok()) End(status, 0);
}

absl::Status NormalizeCall::Accept() {
  AcceptEnvironment& accept = environment_.accept;
  const auto message_bytes = static_cast<std::int64_t>(messages_.request.Length());
  accept.metrics.AddPayload(message_bytes, 0);
  CountReceived(message_bytes);
  const absl::StatusOr<MessageViews> views = OpenMessage(context_, messages_.request, slices_);
  if (!views.ok()) return views.status();
  absl::StatusOr<RequestDescription> description = messages_.codec.Decode(*views);
  if (!description.ok()) return description.status();
  const absl::Status status = AcceptRequest(accept, call_, *description, accepted_);
  if (!status.ok()) return status;

  std::unique_ptr<Request> request = MakeRequest(accept, call_, accepted_, accepted_.geometry());
  for (const std::size_t place : accepted_.inputs.places) {
    request->inputs.push_back(std::move(description->inputs[place].data));
  }
  // The call outlives the request's use of the slices.
  request->input_owner = std::shared_ptr<void>(std::shared_ptr<void>(), this);
  request->done = [this](Completion&& completion) { Complete(std::move(completion)); };
  request_id_ = request->id;
  request->arrival = call_.arrival();
  request->stages[Stage::kDecode] = accept.clock.Now() - call_.arrival();
  // After an accepted Push the call may be over: nothing of it is touched any more.
  return accept.queue.Push(request);
}

void NormalizeCall::Complete(Completion&& completion) {
  const absl::Status status =
      completion.status.ok() ? CatchAll([&] { return Answer(completion); }) : completion.status;
  if (environment_.accept.request_log != nullptr) {
    stages_ = completion.stages;
    batch_ = std::move(completion.batch);
  }
  End(status, messages_.response.Length());
}

absl::Status NormalizeCall::Answer(Completion& completion) {
  AcceptEnvironment& accept = environment_.accept;
  const TimePoint begin = accept.clock.Now();
  absl::StatusOr<ResponseDescription> response = MakeResponse(call_, accepted_, completion);
  if (!response.ok()) return response.status();
  // grpc::ByteBuffer copies where others would move.
  grpc::ByteBuffer encoded = messages_.codec.Encode(*std::move(response));
  messages_.response.Swap(&encoded);
  accept.metrics.AddPayload(0, static_cast<std::int64_t>(messages_.response.Length()));
  completion.stages[Stage::kEncode] = accept.clock.Now() - begin;
  call_.metrics().RecordStages(completion.stages);
  return absl::OkStatus();
}

void NormalizeCall::OnCancel() {
  call_.Cancel();
  environment_.accept.queue.Cancel(request_id_);
}

void NormalizeCall::Record() { call_.RecordAndLog(stages_, batch_); }

}  // namespace normd

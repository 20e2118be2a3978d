#include "server/rpc/normalize_call.h"

#include <memory>
#include <utility>

#include "server/accept/client_status.h"

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
  if (status.ok()) return;
  exchange_.LetGo();
  End(status, 0);
}

absl::Status NormalizeCall::Accept() {
  absl::StatusOr<std::unique_ptr<Request>> request = exchange_.Accept(context_, messages_.request);
  if (!request.ok()) return request.status();
  (*request)->done = [this](Completion&& completion) { Complete(std::move(completion)); };
  // After an accepted Push the call may have ended: do not touch it any more.
  return environment_.accept.queue.Push(*request);
}

void NormalizeCall::Complete(Completion&& completion) {
  const absl::Status status = exchange_.End(completion, messages_.response);
  if (environment_.accept.request_log != nullptr) {
    stages_ = completion.stages;
    batch_ = std::move(completion.batch);
  }
  End(status, messages_.response.Length());
}

void NormalizeCall::OnCancel() {
  Cancel();
  environment_.accept.queue.Cancel(exchange_.request_id());
}

void NormalizeCall::Record() { call_.RecordAndLog(stages_, batch_); }

}  // namespace normd

#include "server/rpc/unary_call.h"

#include <utility>

#include "server/rpc/call_arrival.h"
#include "server/rpc/status.h"

namespace normd {

UnaryCall::UnaryCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                     Method method)
    : environment_(environment),
      context_(context),
      call_(environment.accept, ArrivalOf(context, method, environment.accept)),
      inside_(call_.caller()) {}

void UnaryCall::Cancel() {
  call_.Leave();
  inside_.Leave();
}

void UnaryCall::End(const absl::Status& status, std::size_t response_bytes) {
  grpc::Status answer = ToGrpc(call_.End(status), environment_.options.retry_after, context_);
  environment_.responses.Add(response_, context_.c_call(),
                             environment_.options.ResponsePatience(response_bytes));
  Finish(std::move(answer));
}

void UnaryCall::OnDone() {
  if (environment_.responses.Remove(response_)) {
    call_.SetCode(absl::StatusCode::kDeadlineExceeded);
  } else if (call_.code() == absl::StatusCode::kInvalidArgument && call_.cancelled()) {
    // It may have left before its message was complete; nobody reads its status then.
    call_.SetCode(call_.code_of_leaving());
  }
  Record();
  delete this;  // Returns its share of the budgets, then leaves.
}

grpc::ServerUnaryReactor* OutOfMemory(grpc::CallbackServerContext& context) {
  try {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", "100");
  } catch (const std::bad_alloc&) {
    // The call then has no hint.
  }
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory left"));
  return reactor;
}

}  // namespace normd

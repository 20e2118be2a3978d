#include "server/rpc/control_call.h"

#include <utility>

#include "server/rpc/call_deadline.h"
#include "server/rpc/caller_name.h"
#include "server/rpc/compression.h"
#include "server/rpc/status.h"

namespace normd {

ControlCall::ControlCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                         Method method)
    : environment_(environment),
      context_(context),
      method_(method),
      arrival_(environment.clock.Now()),
      deadline_(DeadlineOf(context, environment.clock)),
      ids_(EchoRequestIds(context)) {
  environment_.active.Enter();
}

void ControlCall::Start(std::int64_t request_bytes, Body body, TaskThread* thread) {
  environment_.delivered.Record(context_.peer(), request_bytes);
  bool handed_over = false;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    const absl::Status uncompressed = CheckUncompressed(context_);
    if (!uncompressed.ok()) return uncompressed;
    const CallerName caller(context_);
    auto lease = environment_.admission.Admit(request_bytes, environment_.metrics.ForNoModel(),
                                              Needs::kNothing, caller.caller());
    if (!lease.ok()) return lease.status();
    lease_ = *std::move(lease);
    if (thread == nullptr) return std::move(body)(about_);
    thread_ = thread;
    ticket_ = thread->Submit([this, body = std::move(body)]() mutable {
      End(CatchAll([&] {
        const absl::Status wanted = StillWanted();
        return wanted.ok() ? std::move(body)(about_) : wanted;
      }));
    });
    handed_over = ticket_ != 0;
    if (handed_over) return absl::OkStatus();
    return absl::ResourceExhaustedError("models: too many loads and unloads wait, retry later");
  });
  if (!handed_over) End(status);
}

absl::Status ControlCall::StillWanted() const {
  if (environment_.clock.Now() >= deadline_) {
    return absl::DeadlineExceededError("the call's deadline passed before its turn came");
  }
  return context_.IsCancelled()
             ? absl::CancelledError("the client cancelled the call before its turn came")
             : absl::OkStatus();
}

// gRPC also comes here when the deadline passes. A body that waits gives up its place at once, so
// that calls which nobody waits for keep no others out.
void ControlCall::OnCancel() {
  if (thread_ == nullptr || !thread_->Withdraw(ticket_)) return;
  const absl::Status wanted = StillWanted();
  End(wanted.ok() ? absl::CancelledError("the client cancelled the call") : wanted);
}

void ControlCall::End(const absl::Status& status) {
  // As the client sees it.
  code_ = absl::IsUnknown(status) ? absl::StatusCode::kInternal : status.code();
  const grpc::Status answer =
      ToGrpc(status, environment_.options.retry_after, context_, ids_.request_id);
  // After Finish the call may be over.
  environment_.responses.Add(response_, context_.c_call(),
                             environment_.options.ResponsePatience(0));
  Finish(answer);
}

void ControlCall::OnDone() {
  if (environment_.responses.Remove(response_)) code_ = absl::StatusCode::kDeadlineExceeded;
  ModelMetrics& metrics = about_ != nullptr ? about_->metrics() : environment_.metrics.ForNoModel();
  metrics.RecordRequest(method_, code_, environment_.clock.Now() - arrival_);
  CallEnvironment& environment = environment_;
  delete this;
  environment.active.Leave();
}

}  // namespace normd

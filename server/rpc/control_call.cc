#include "server/rpc/control_call.h"

#include <chrono>
#include <utility>

#include "server/accept/client_status.h"

namespace normd {
namespace {

// The cost of sending a long response, on gRPC's threads.
constexpr Duration kSendingAByte = std::chrono::nanoseconds(1);

}  // namespace

void ControlCall::Start(std::int64_t request_bytes, Body body, TaskThread* thread) {
  call_.CountReceived(request_bytes);
  bool handed_over = false;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    if (absl::Status refused = call_.Authorize(); !refused.ok()) return refused;
    if (absl::Status refused = Admit(request_bytes); !refused.ok()) return refused;
    if (thread == nullptr) return Run(std::move(body));
    thread_ = thread;
    ticket_ = thread->Submit(
        [this, thread, &environment = environment_, body = std::move(body)]() mutable {
          const TimePoint begin = environment.accept.clock.Now();
          const absl::Status ended = CatchAll([&] {
            absl::Status wanted = StillWanted();
            return wanted.ok() ? Run(std::move(body)) : wanted;
          });
          const Duration sending = response_bytes_ * kSendingAByte;
          End(ended, response_bytes_);  // The call may be gone now.
          if (thread != &environment.lists) return;
          thread->Pause(PauseAfter(environment.accept.clock.Now() - begin + sending));
        });
    handed_over = ticket_ != 0;
    if (handed_over) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        thread == &environment_.lists ? "lists: too many calls that list wait, retry later"
                                      : "models: too many loads and unloads wait, retry later");
  });
  if (handed_over) return;
  // gRPC keeps the call until Start's caller has returned, even one that has ended meanwhile.
  if (late_end_ == nullptr) return End(status, response_bytes_);
  late_end_->BodyReturned(status);
}

void ControlCall::LateEnd::End(const absl::Status& status) {
  ControlCall* call = nullptr;
  {
    MutexLock lock(mutex_);
    if (!may_end_) {
      end_ = status;
      return;
    }
    call = std::exchange(call_, nullptr);
  }
  if (call != nullptr) call->UnaryCall::End(status, 0);
}

void ControlCall::LateEnd::BodyReturned(const absl::Status& status) {
  std::optional<absl::Status> end;
  {
    MutexLock lock(mutex_);
    may_end_ = true;
    end = status.ok() ? end_ : status;
  }
  if (end.has_value()) End(*end);
}

std::shared_ptr<ControlCall::LateEnd> ControlCall::EndLater() {
  late_end_ = std::make_shared<LateEnd>(*this);
  return late_end_;
}

absl::Status ControlCall::Admit(std::int64_t request_bytes) {
  auto lease = environment_.accept.admission.Admit(
      request_bytes, environment_.accept.metrics.ForNoModel(), Needs::kNothing, call_.account());
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  return absl::OkStatus();
}

absl::Status ControlCall::CheckModel(absl::string_view model) {
  call_.SetAskedModel(model);
  if (right_ != Right::kDescribe) return absl::OkStatus();
  return call_.AuthorizeModel(model);
}

absl::Status ControlCall::Run(Body body) {
  std::shared_ptr<const Model> about;
  absl::Status status = std::move(body)(about);
  call_.SetModel(std::move(about));
  return status;
}

absl::Status ControlCall::StillWanted() const {
  if (environment_.accept.clock.Now() >= call_.deadline()) {
    return absl::DeadlineExceededError("the call's deadline passed before its turn came");
  }
  return call_.cancelled()
             ? absl::CancelledError("the client cancelled the call before its turn came")
             : absl::OkStatus();
}

// gRPC also comes here when the deadline passes. A waiting body gives up its place at once, so that
// calls which nobody waits for keep no others out. A body whose turn has just come finds out by
// itself.
void ControlCall::OnCancel() {
  Cancel();
  if (thread_ != nullptr && thread_->Withdraw(ticket_)) End(StillWanted(), 0);
  if (late_end_ != nullptr) late_end_->End(StillWanted());
}

}  // namespace normd

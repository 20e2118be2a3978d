#include "server/accept/control_call.h"

#include <chrono>

#include "server/accept/client_status.h"
#include "server/accept/method_rights.h"

namespace normd {
namespace {

// The cost of sending a long response, on the front end's threads.
constexpr Duration kSendingAByte = std::chrono::nanoseconds(1);

// A server that drains still says that it is live and not ready.
Needs NeedsOf(Method method) {
  const bool is_probe = method == Method::kServerLive || method == Method::kServerReady ||
                        method == Method::kModelReady;
  return is_probe ? Needs::kRoom : Needs::kOpenServer;
}

}  // namespace

void ControlCall::Start(std::int64_t request_bytes, Body body, ControlPlace place) {
  call_context_.CountReceived(request_bytes);
  TaskThread* const thread = place == ControlPlace::kLoads   ? &threads_.loads
                             : place == ControlPlace::kLists ? &threads_.lists
                                                             : nullptr;
  bool handed_over = false;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    if (absl::Status refused = call_context_.Authorize(); !refused.ok()) return refused;
    if (absl::Status refused = Admit(request_bytes); !refused.ok()) return refused;
    if (thread == nullptr) return std::move(body)();
    thread_ = thread;
    ticket_ = thread->Submit(
        [this, thread, place, &clock = accept_.clock, body = std::move(body)]() mutable {
          const TimePoint begin = clock.Now();
          const absl::Status ended = CatchAll([&] {
            absl::Status wanted = StillWanted();
            return wanted.ok() ? std::move(body)() : wanted;
          });
          const Duration sending = response_bytes_ * kSendingAByte;
          OnEnd(ended, response_bytes_);  // The call may be gone now.
          if (place != ControlPlace::kLists) return;
          thread->Pause(PauseAfter(clock.Now() - begin + sending));
        });
    handed_over = ticket_ != 0;
    if (handed_over) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        place == ControlPlace::kLists ? "lists: too many calls that list wait, retry later"
                                      : "models: too many loads and unloads wait, retry later");
  });
  if (handed_over) return;
  // The front end keeps the call until Start's caller has returned, even one that has ended
  // meanwhile.
  if (late_end_ == nullptr) return OnEnd(status, response_bytes_);
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
  if (call != nullptr) call->OnEnd(status, 0);
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
  auto lease = accept_.admission.Admit(request_bytes, accept_.metrics.ForNoModel(),
                                       NeedsOf(method_), call_context_.account());
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  return absl::OkStatus();
}

absl::Status ControlCall::CheckModel(absl::string_view model) {
  call_context_.SetAskedModel(model);
  if (RightOf(method_) != Right::kDescribe) return absl::OkStatus();
  return call_context_.AuthorizeModel(model);
}

absl::Status ControlCall::StillWanted() const {
  if (call_context_.cancelled()) {
    return absl::CancelledError("the client cancelled the call before its turn came");
  }
  return accept_.clock.Now() >= call_context_.deadline()
             ? absl::DeadlineExceededError("the call's deadline passed before its turn came")
             : absl::OkStatus();
}

// A waiting body gives up its place at once, so that calls which nobody waits for keep no others
// out. A body whose turn has just come finds out by itself.
void ControlCall::Leave() {
  if (thread_ != nullptr && thread_->Withdraw(ticket_)) OnEnd(StillWanted(), 0);
  if (late_end_ != nullptr) late_end_->End(StillWanted());
}

}  // namespace normd

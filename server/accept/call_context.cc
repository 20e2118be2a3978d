#include "server/accept/call_context.h"

#include <algorithm>
#include <chrono>

#include "server/accept/client_status.h"
#include "server/accept/method_rights.h"

namespace normd {
namespace {

// Without memory to count or log a call, the call still ends.
template <typename Act>
void WithMemory(Act act) {
  CatchAll([&act] {
    act();
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace

bool LeftAtDeadline(TimePoint arrival, TimePoint deadline, TimePoint left) {
  if (deadline == kNever) return false;
  const Duration limit = std::max(deadline - arrival, Duration(0));
  // gRPC sends the time limit with three digits, rounded up: up to a hundredth more.
  const Duration rounding = limit / 100;
  // The server begins to count when a thread reads the call: a few milliseconds later, and tens of
  // them if it is too busy for its calls, which is when deadlines pass.
  const Duration delay = std::min<Duration>(std::chrono::milliseconds(100), limit / 4);
  return left >= deadline - rounding - delay;
}

CallContext::~CallContext() {
  // A thread that waits for the last call may then end the objects that these use.
  model_.reset();
  arrival_.caller.reset();
  arrival_.identity = nullptr;
  environment_.active.Leave();
}

AskedCall CallContext::Asked() const {
  AskedCall call{arrival_.identity, false, MethodName(arrival_.method), "",
                 arrival_.ids.request_id};
  if (arrival_.caller != nullptr) {
    call.by_admin_listener = arrival_.caller->origin.admin_listener;
    call.peer = arrival_.caller->name;
  }
  return call;
}

absl::string_view CallContext::owner() const {
  if (!arrival_.identity.ok() || *arrival_.identity == nullptr) return "";
  return (*arrival_.identity)->identity.name;
}

absl::Status CallContext::Authorize() {
  if (!arrival_.metadata.ok()) return arrival_.metadata;
  if (environment_.authorizer == nullptr || authorized_) return absl::OkStatus();
  absl::Status status = environment_.authorizer->Check(Asked(), RightOf(arrival_.method));
  authorized_ = status.ok();
  if (absl::IsResourceExhausted(status)) metrics().RecordRejection(Rejection::kIdentityRate);
  return status;
}

absl::Status CallContext::AuthorizeModel(absl::string_view model) {
  if (environment_.authorizer == nullptr) return absl::OkStatus();
  return environment_.authorizer->CheckModel(Asked(), RightOf(arrival_.method), model);
}

CallAccount CallContext::account() const {
  const bool has_identity = arrival_.identity.ok() && *arrival_.identity != nullptr;
  return {arrival_.caller.get(),
          has_identity ? (*arrival_.identity)->account->peer.get() : nullptr};
}

ModelMetrics& CallContext::metrics() const {
  return model_ != nullptr ? model_->metrics() : environment_.metrics.ForNoModel();
}

void CallContext::CountReceived(std::int64_t message_bytes) {
  if (arrival_.caller != nullptr) arrival_.caller->delivered.Add(message_bytes);
}

std::shared_ptr<std::atomic<bool>> CallContext::cancellation() {
  return std::shared_ptr<std::atomic<bool>>(std::shared_ptr<void>(), &cancelled_);
}

void CallContext::Leave() {
  TimePoint none = kNever;
  left_.compare_exchange_strong(none, environment_.clock.Now(), std::memory_order_relaxed);
  Cancel();
}

absl::StatusCode CallContext::code_of_leaving() const {
  const TimePoint left = left_.load(std::memory_order_relaxed);
  const bool late = left != kNever && LeftAtDeadline(arrival_.at, arrival_.deadline, left);
  return late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled;
}

absl::Status CallContext::End(const absl::Status& status) {
  const absl::Status made = CatchAll([&] {
    const bool is_late =
        absl::IsCancelled(status) && code_of_leaving() == absl::StatusCode::kDeadlineExceeded;
    ended_ = ForClient(
        is_late ? absl::DeadlineExceededError("the deadline passed before the response") : status,
        arrival_.ids.request_id);
    return absl::OkStatus();
  });
  if (!made.ok()) ended_ = made;
  return ended_;
}

Duration CallContext::Record() {
  const Duration duration = environment_.clock.Now() - arrival_.at;
  WithMemory([&] {
    metrics().RecordRequest(arrival_.method, code(), duration);
    if (environment_.authorizer == nullptr) return;
    environment_.authorizer->Record(Asked(), RightOf(arrival_.method), asked_model_,
                                    {code(), input_bytes_});
  });
  return duration;
}

void CallContext::RecordAndLog(const StageTimes& stages, const BatchInfo& batch) {
  const Duration duration = Record();
  if (environment_.request_log == nullptr) return;
  const RequestLog::Reason reason = environment_.request_log->Pick(duration);
  if (reason == RequestLog::Reason::kNone) return;
  WithMemory([&] {
    environment_.request_log->Write(
        reason, {MethodName(arrival_.method), arrival_.ids,
                 model_ != nullptr ? absl::string_view(model_->name()) : absl::string_view(),
                 model_ != nullptr ? model_->version() : 0, ended_, duration, stages, batch,
                 arrival_.caller != nullptr ? absl::string_view(arrival_.caller->name)
                                            : absl::string_view(),
                 owner(), input_bytes_});
  });
}

}  // namespace normd

#include "server/accept/call_context.h"

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

CallContext::CallContext(AcceptEnvironment& environment, CallArrival arrival)
    : environment_(environment),
      method_(arrival.method),
      arrival_(arrival.at),
      deadline_(arrival.deadline),
      ids_(std::move(arrival.ids)),
      caller_(std::move(arrival.caller)),
      identity_(std::move(arrival.identity)),
      metadata_(std::move(arrival.metadata)) {
  environment_.active.Enter();
}

CallContext::~CallContext() {
  // A thread that waits for the last call may then end the objects that these use.
  model_.reset();
  caller_.reset();
  identity_ = nullptr;
  environment_.active.Leave();
}

AskedCall CallContext::Asked() const {
  AskedCall call{identity_, false, MethodName(method_), "", ids_.request_id};
  if (caller_ != nullptr) {
    call.by_admin_listener = caller_->origin.admin_listener;
    call.peer = caller_->name;
  }
  return call;
}

absl::string_view CallContext::owner() const {
  if (!identity_.ok() || *identity_ == nullptr) return "";
  return (*identity_)->identity.name;
}

absl::Status CallContext::Authorize() {
  if (!metadata_.ok()) return metadata_;
  if (environment_.authorizer == nullptr || authorized_) return absl::OkStatus();
  absl::Status status = environment_.authorizer->Check(Asked(), RightOf(method_));
  authorized_ = status.ok();
  if (absl::IsResourceExhausted(status)) metrics().RecordRejection(Rejection::kIdentityRate);
  return status;
}

absl::Status CallContext::AuthorizeModel(absl::string_view model) {
  if (environment_.authorizer == nullptr) return absl::OkStatus();
  return environment_.authorizer->CheckModel(Asked(), RightOf(method_), model);
}

CallAccount CallContext::account() const {
  const bool has_identity = identity_.ok() && *identity_ != nullptr;
  return {caller_.get(), has_identity ? (*identity_)->account->peer.get() : nullptr};
}

ModelMetrics& CallContext::metrics() const {
  return model_ != nullptr ? model_->metrics() : environment_.metrics.ForNoModel();
}

void CallContext::CountReceived(std::int64_t message_bytes) {
  if (caller_ != nullptr) caller_->delivered.Add(message_bytes);
}

std::shared_ptr<std::atomic<bool>> CallContext::cancellation() {
  return std::shared_ptr<std::atomic<bool>>(std::shared_ptr<void>(), &cancelled_);
}

absl::Status CallContext::End(const absl::Status& status) {
  const absl::Status made = CatchAll([&] {
    ended_ = ForClient(status, ids_.request_id);
    return absl::OkStatus();
  });
  if (!made.ok()) ended_ = made;
  return ended_;
}

Duration CallContext::Record() {
  const Duration duration = environment_.clock.Now() - arrival_;
  WithMemory([&] {
    metrics().RecordRequest(method_, code(), duration);
    if (environment_.authorizer == nullptr) return;
    environment_.authorizer->Record(Asked(), RightOf(method_), asked_model_,
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
        reason, {MethodName(method_), ids_,
                 model_ != nullptr ? absl::string_view(model_->name()) : absl::string_view(),
                 model_ != nullptr ? model_->version() : 0, ended_, duration, stages, batch,
                 caller_ != nullptr ? absl::string_view(caller_->name) : absl::string_view(),
                 owner(), input_bytes_});
  });
}

}  // namespace normd

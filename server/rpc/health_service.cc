#include "server/rpc/health_service.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "server/callers/caller.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/received_message.h"
#include "server/rpc/status.h"

namespace normd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// More than the longest possible name, which includes a model's.
constexpr std::size_t kMaxNameBytes = 200;

grpc::ByteBuffer Encode(HealthService::Status status) {
  HealthCheckResponse response;
  response.set_status(status);
  grpc::ByteBuffer encoded;
  bool own_buffer = false;
  grpc::SerializationTraits<HealthCheckResponse>::Serialize(response, &encoded, &own_buffer);
  return encoded;
}

grpc::Status Closed() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is stopping");
}

}  // namespace

// One Watch. Deletes itself in OnDone. At most one write is in progress; later changes are sent
// after it, only the last state.
class HealthService::Watcher final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  Watcher(HealthService& service, std::string name, std::shared_ptr<Caller> caller)
      : service_(service),
        name_(std::move(name)),
        caller_(std::move(caller)),
        inside_(caller_.get()) {}

  // Call with the service's lock held, as all functions below without a lock of their own.
  void Update(Status status) {
    wanted_ = status;
    SendIfNew();
  }
  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(service_.mutex_);
    writing_ = false;
    if (ok) {
      SendIfNew();
    } else {
      End(grpc::Status::CANCELLED);
    }
  }
  void OnCancel() override {
    inside_.Leave();
    MutexLock lock(service_.mutex_);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    {
      MutexLock lock(service_.mutex_);
      const auto watchers = service_.watchers_.find(name_);
      if (watchers != service_.watchers_.end()) {
        watchers->second.erase(this);
        if (watchers->second.empty()) service_.watchers_.erase(watchers);
      }
    }
    delete this;
  }

 private:
  void SendIfNew() {
    if (writing_ || ended_ || wanted_ == sent_) return;
    sent_ = wanted_;
    writing_ = true;
    response_ = Encode(sent_);
    StartWrite(&response_);
  }

  HealthService& service_;
  const std::string name_;
  const std::shared_ptr<Caller> caller_;  // shared: as any call's.
  CallInside inside_;
  grpc::ByteBuffer response_;
  Status wanted_ = HealthCheckResponse::UNKNOWN;
  Status sent_ = HealthCheckResponse::UNKNOWN;  // Nothing yet: no name has this status.
  bool writing_ = false;
  bool ended_ = false;
};

HealthService::Status HealthService::StatusOf(absl::string_view name) const {
  const auto found = serving_.find(name);
  if (found == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Tell(const std::string& name) {
  const auto watchers = watchers_.find(name);
  if (watchers == watchers_.end()) return;
  for (Watcher* const watcher : watchers->second) watcher->Update(StatusOf(name));
}

void HealthService::Set(const std::string& name, bool serving) {
  MutexLock lock(mutex_);
  serving_[name] = serving;
  Tell(name);
}

void HealthService::Forget(const std::string& name) {
  MutexLock lock(mutex_);
  serving_.erase(name);
  Tell(name);
}

void HealthService::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (const auto& [name, watchers] : watchers_) {
    for (Watcher* const watcher : watchers) watcher->End(Closed());
  }
}

absl::Status HealthService::Accept(grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& message, absl::string_view method,
                                   HealthCheckRequest& request) const {
  if (const auto caller = CallerOf(context, environment_.callers); caller != nullptr) {
    caller->delivered.Add(static_cast<std::int64_t>(message.Length()));
  }
  if (absl::Status status = ParseControl(context, message, request); !status.ok()) return status;
  PlainCall call{method, Right::kHealth, ""};
  const absl::string_view name = request.service();
  if (const std::size_t slash = name.find('/'); slash != absl::string_view::npos) {
    call.right = Right::kDescribe;
    call.model = name.substr(slash + 1);
  }
  absl::Status status = CheckPlainCall(context, environment_, call);
  if (!status.ok() || name.size() <= kMaxNameBytes) return status;
  return absl::InvalidArgumentError("service: the name is over 200 bytes long");
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* message,
                                               grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  HealthCheckRequest request;
  if (absl::Status refused = Accept(*context, *message, "HealthCheck", request); !refused.ok()) {
    reactor->Finish(ToGrpc(refused, Duration(0), *context));
    return reactor;
  }
  Status status;
  {
    MutexLock lock(mutex_);
    status = StatusOf(request.service());
  }
  *response = Encode(status);
  reactor->Finish(status == HealthCheckResponse::SERVICE_UNKNOWN
                      ? grpc::Status(grpc::StatusCode::NOT_FOUND,
                                     "service: unknown, wanted a model that is loaded")
                      : grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  HealthCheckRequest request;
  const absl::Status refused = Accept(*context, *message, "HealthWatch", request);
  const std::string& name = request.service();
  auto* const watcher = new Watcher(*this, name, CallerOf(*context, environment_.callers));
  MutexLock lock(mutex_);
  if (!refused.ok()) {
    watcher->End(ToGrpc(refused, Duration(0), *context));
  } else if (closed_) {
    watcher->End(Closed());
  } else {
    watchers_[name].insert(watcher);
    watcher->Update(StatusOf(name));
  }
  return watcher;
}

}  // namespace normd

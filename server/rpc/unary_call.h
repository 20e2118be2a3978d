// The common part of all services' unary calls: their arrival and their end; and control calls.

#ifndef NORMD_SERVER_RPC_UNARY_CALL_H_
#define NORMD_SERVER_RPC_UNARY_CALL_H_

#include <cstddef>
#include <new>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/call_context.h"
#include "server/accept/control_call.h"
#include "server/callers/caller.h"
#include "server/rpc/call_environment.h"

namespace normd {

// Allocated by NewCall; deletes itself in OnDone, which gRPC calls last, after Finish, the handler
// and OnCancel have all returned.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const UnaryCall&) = delete;
  UnaryCall& operator=(const UnaryCall&) = delete;

  void OnDone() final;

 protected:
  // Both arguments outlive the call.
  UnaryCall(CallEnvironment& environment, grpc::CallbackServerContext& context, Method method);
  ~UnaryCall() override = default;

  // The client is gone. For OnCancel.
  void Cancel();
  // Finishes the call, with a response of `response_bytes` if `status` is OK. Exactly once; the
  // call may be gone when it returns.
  void End(const absl::Status& status, std::size_t response_bytes);
  // Counts the call when it is over.
  virtual void Record() = 0;

  CallEnvironment& environment_;
  grpc::CallbackServerContext& context_;
  CallContext call_;

 private:
  CallInside inside_;
  ResponseWatch::Entry response_;
};

// A control call over gRPC.
class UnaryControlCall final : public UnaryCall, public ControlCall {
 public:
  // All arguments outlive the call.
  UnaryControlCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                   Method method)
      : UnaryCall(environment, context, method),
        ControlCall(environment.accept, environment.control, call_, method) {}

  std::optional<absl::string_view> Metadata(absl::string_view name) const override {
    const auto found = context_.client_metadata().find({name.data(), name.size()});
    if (found == context_.client_metadata().end()) return std::nullopt;
    return absl::string_view(found->second.data(), found->second.size());
  }

  // gRPC also comes here when the deadline passes.
  void OnCancel() override {
    Cancel();
    Leave();
  }

 private:
  void OnEnd(const absl::Status& status, std::size_t response_bytes) override {
    End(status, response_bytes);
  }
  void Record() override { call_.Record(); }
};

// Ends a call for which there is no memory, without needing any.
grpc::ServerUnaryReactor* OutOfMemory(grpc::CallbackServerContext& context);

// Null when memory is short.
template <typename Call, typename... Args>
Call* NewCall(Args&&... args) {
  try {
    return new Call(std::forward<Args>(args)...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_UNARY_CALL_H_

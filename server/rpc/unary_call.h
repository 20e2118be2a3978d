// The common part of all services' unary calls: their arrival and their end.

#ifndef NORMD_SERVER_RPC_UNARY_CALL_H_
#define NORMD_SERVER_RPC_UNARY_CALL_H_

#include <cstddef>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/call_context.h"
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

// A unary call that computes nothing: it is admitted, runs a body, and ends.

#ifndef NORMD_SERVER_RPC_CONTROL_CALL_H_
#define NORMD_SERVER_RPC_CONTROL_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/task_thread.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/method_rights.h"
#include "server/batching/admission.h"
#include "server/rpc/unary_call.h"

namespace normd {

// Finish runs exactly once: at the end of the body, wherever that runs, or instead of a body that
// has not begun when the client leaves or the deadline passes. A body that has begun is not
// stopped, but work left for later (EndLater) is not awaited.
class ControlCall final : public UnaryCall {
 public:
  // The end of a call that outlasts its body. Thread-safe; may outlive the call.
  class LateEnd {
   public:
    explicit LateEnd(ControlCall& call) : call_(&call) {}
    // Ends the call, unless it has ended: at once, or when its body has returned.
    void End(const absl::Status& status);

   private:
    friend class ControlCall;
    // The body has returned, with a response if `status` is OK; an error ends the call.
    void BodyReturned(const absl::Status& status);

    Mutex mutex_;
    ControlCall* call_ ABSL_GUARDED_BY(mutex_);  // Null: it has ended.
    bool may_end_ ABSL_GUARDED_BY(mutex_) = false;
    // Set if End came before it was allowed.
    std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  };

  // The body may report the model that the call was about, whose series count it.
  using Body = absl::AnyInvocable<absl::Status(std::shared_ptr<const Model>& about) &&>;

  // All arguments outlive the call.
  ControlCall(CallEnvironment& environment, grpc::CallbackServerContext& context, Method method)
      : UnaryCall(environment, context, method), right_(RightOf(method)) {}

  // Checks the caller's right, admits `request_bytes` and runs `body`: on `thread`, or here if it
  // is null. Ends the call in each case. CallEnvironment::lists pauses after it. Never throws.
  void Start(std::int64_t request_bytes, Body body, TaskThread* thread);

  // For the body: checks the caller's right to a model of this name, as sent; empty for a request
  // that names none.
  absl::Status CheckModel(absl::string_view model);

  // See CallContext::owner.
  absl::string_view owner() const { return call_.owner(); }
  TimePoint arrival() const { return call_.arrival(); }
  TimePoint deadline() const { return call_.deadline(); }
  // For the body: the length of its response.
  void set_response_bytes(std::size_t bytes) { response_bytes_ = bytes; }

  // For a body that runs within Start: after an OK the call has not ended. It ends through the
  // result of this, or when the client leaves or the deadline passes. Called at most once. shared:
  // with the code that ends it.
  std::shared_ptr<LateEnd> EndLater();

  void OnCancel() override;

 private:
  absl::Status Admit(std::int64_t request_bytes);
  absl::Status Run(Body body);
  // OK while the client waits for the response.
  absl::Status StillWanted() const;
  void Record() override { call_.Record(); }

  const Right right_;
  Admission::Lease lease_;
  std::size_t response_bytes_ = 0;
  // The thread on which the body waits or has waited. Set before gRPC may call OnCancel, which is
  // once Start's caller has returned.
  TaskThread* thread_ = nullptr;
  TaskThread::Ticket ticket_ = 0;
  std::shared_ptr<LateEnd> late_end_;  // Set likewise. shared: with the code that ends the call.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CONTROL_CALL_H_

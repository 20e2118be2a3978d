// A unary call that computes nothing: it is admitted, runs a body, and ends.

#ifndef NORMD_SERVER_ACCEPT_CONTROL_CALL_H_
#define NORMD_SERVER_ACCEPT_CONTROL_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/task_thread.h"
#include "server/accept/call_context.h"
#include "server/accept/environment.h"
#include "server/batching/admission.h"

namespace normd {

// More would wait for longer than a client does.
inline constexpr std::size_t kMaxWaitingLoads = 64;
inline constexpr std::size_t kMaxWaitingLists = 256;

// Where control calls of all front ends wait. Outlives them.
struct ControlThreads {
  // Runs loads and unloads, one after another.
  TaskThread loads{"control", kMaxWaitingLoads};
  // Runs everything that lists, with pauses, so that requests do not notice it.
  TaskThread lists{"lists", kMaxWaitingLists};
};
enum class ControlPlace { kHere, kLoads, kLists };

// OnEnd is called exactly once: at the end of the body, wherever that runs, or instead of a body
// that has not begun when the client leaves or the deadline passes. A body that has begun is not
// stopped, but work left for later (EndLater) is not awaited.
class ControlCall {
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

  using Body = absl::AnyInvocable<absl::Status() &&>;

  // All of them outlive the call.
  ControlCall(AcceptEnvironment& environment, ControlThreads& threads, CallContext& context,
              Method method)
      : accept_(environment), threads_(threads), call_context_(context), method_(method) {}
  virtual ~ControlCall() = default;
  ControlCall(const ControlCall&) = delete;
  ControlCall& operator=(const ControlCall&) = delete;

  // Checks the caller's right, admits `request_bytes` and runs `body` at `place`. Ends the call in
  // each case. ControlThreads::lists pauses after it. Never throws.
  void Start(std::int64_t request_bytes, Body body, ControlPlace place);

  // For the body: checks the caller's right to a model of this name, as sent; empty for a request
  // that names none.
  absl::Status CheckModel(absl::string_view model);
  // For the body: the model that the call is about, whose series count it.
  void SetModel(std::shared_ptr<const Model> model) { call_context_.SetModel(std::move(model)); }
  // For the body: the metadata with this name; nullopt if there is none.
  virtual std::optional<absl::string_view> Metadata(absl::string_view name) const = 0;

  // See CallContext::owner.
  absl::string_view owner() const { return call_context_.owner(); }
  TimePoint arrival() const { return call_context_.arrival(); }
  TimePoint deadline() const { return call_context_.deadline(); }
  // For the body: the length of its response.
  void set_response_bytes(std::size_t bytes) { response_bytes_ = bytes; }

  // For a body that runs within Start: after an OK the call has not ended. It ends through the
  // result of this, or when the client leaves or the deadline passes. Called at most once. shared:
  // with the code that ends it.
  std::shared_ptr<LateEnd> EndLater();

  // The client is gone, or the deadline has passed. Not before Start has returned.
  void Leave();

 protected:
  // The call's end, with a response of `response_bytes` if `status` is OK. The call may be gone
  // when it returns.
  virtual void OnEnd(const absl::Status& status, std::size_t response_bytes) = 0;

 private:
  absl::Status Admit(std::int64_t request_bytes);
  // OK while the client waits for the response.
  absl::Status StillWanted() const;

  AcceptEnvironment& accept_;
  ControlThreads& threads_;
  CallContext& call_context_;
  const Method method_;
  Admission::Lease lease_;
  std::size_t response_bytes_ = 0;
  // The thread on which the body waits or has waited. Set before Leave may be called.
  TaskThread* thread_ = nullptr;
  TaskThread::Ticket ticket_ = 0;
  std::shared_ptr<LateEnd> late_end_;  // Set likewise. shared: with the code that ends the call.
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_CONTROL_CALL_H_

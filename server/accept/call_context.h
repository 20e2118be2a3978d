// One call from its arrival to its end, in any protocol.

#ifndef NORMD_SERVER_ACCEPT_CALL_CONTEXT_H_
#define NORMD_SERVER_ACCEPT_CALL_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/accept/authorizer.h"
#include "server/accept/environment.h"
#include "server/accept/request_ids.h"
#include "server/batching/request.h"
#include "server/callers/caller.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"

namespace normd {

// A front end's knowledge of a call before it reads a message.
struct CallArrival {
  Method method = Method::kNormalize;
  TimePoint at{};
  // See Callers::Find. shared: with the connection and its other calls.
  std::shared_ptr<Caller> caller;
  Recognised identity = nullptr;  // See Authorizer::Recognise.
  absl::Status metadata;          // An error refuses the call.
  RequestIds ids;
  TimePoint deadline = kNever;
};

// Whether a client that left at `left` did so because its call's deadline came, and not of its own
// will: it leaves a little before the server's copy of the deadline passes.
bool LeftAtDeadline(TimePoint arrival, TimePoint deadline, TimePoint left);

// Counts as active from its construction to its destruction, so it is destroyed last of the call's
// objects. A request of the call must not outlive it. Not thread-safe except for Cancel and Leave;
// End is called once, and Record after it.
class CallContext {
 public:
  CallContext(AcceptEnvironment& environment, CallArrival arrival)
      : environment_(environment), arrival_(std::move(arrival)) {
    environment_.active.Enter();
  }
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  TimePoint arrival() const { return arrival_.at; }
  // For a front end that judges a call before its message has come: it has come now.
  void SetArrival(TimePoint at) { arrival_.at = at; }
  TimePoint deadline() const { return arrival_.deadline; }
  const RequestIds& ids() const { return arrival_.ids; }
  // Null: the caller cannot be told from others.
  Caller* caller() const { return arrival_.caller.get(); }

  // The refusal of the call's metadata, if there is one, else Authorizer::Check, which is asked
  // once; later calls return the same.
  absl::Status Authorize();
  // See Authorizer::CheckModel: with a name as it was sent. Only for methods that infer or
  // describe.
  absl::Status AuthorizeModel(absl::string_view model);
  // For the audit log: the name as it was sent.
  void SetAskedModel(absl::string_view model) { asked_model_ = std::string(model); }
  // Lives as long as the call.
  CallAccount account() const;
  // The owner of regions: the call's identity, or empty without a policy. Lives as long as the
  // call.
  absl::string_view owner() const;

  // Sets the model that the call is about: its series count the call, even a refused one.
  void SetModel(std::shared_ptr<const Model> model) { model_ = std::move(model); }
  const std::shared_ptr<const Model>& model() const { return model_; }
  ModelMetrics& metrics() const;

  // Counts the arrival of a whole message.
  void CountReceived(std::int64_t message_bytes);

  // For the request log: the bytes of the inputs, once they are known.
  void SetInputBytes(std::int64_t bytes) { input_bytes_ = bytes; }

  // Nobody waits for the result. Relaxed order suffices: it only saves work.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Cancels the call because its client is gone or its deadline has passed. The first time counts.
  void Leave();
  // The code of a call whose client left: DeadlineExceeded if it left at its deadline (see
  // LeftAtDeadline), else Cancelled.
  absl::StatusCode code_of_leaving() const;
  // For Request::cancelled; does not own.
  std::shared_ptr<std::atomic<bool>> cancellation();

  // Ends the call with `status`, in place of Cancelled with code_of_leaving. Returns the status for
  // its client.
  absl::Status End(const absl::Status& status);
  // Sets the code that its client gets instead, after End, if it left or did not take the end.
  void SetCode(absl::StatusCode code) { ended_ = absl::Status(code, ""); }
  absl::StatusCode code() const { return ended_.code(); }

  // Counts the call, with the time since its arrival, and writes its line of the audit log if it is
  // an admin call.
  Duration Record();
  // Counts the call, and writes its line of the request log if it gets one.
  void RecordAndLog(const StageTimes& stages, const BatchInfo& batch);

 private:
  AskedCall Asked() const;

  AcceptEnvironment& environment_;
  CallArrival arrival_;
  bool authorized_ = false;
  std::string asked_model_;
  std::shared_ptr<const Model> model_;  // Null: no loaded model.
  std::int64_t input_bytes_ = 0;
  std::atomic<bool> cancelled_{false};
  std::atomic<TimePoint> left_{kNever};  // Relaxed: it is the time alone.
  absl::Status ended_;                   // As its client was told.
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_CALL_CONTEXT_H_

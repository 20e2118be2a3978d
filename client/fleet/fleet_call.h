// One call of a fleet: its attempts, in sequence or, when hedged, two at a time.

#ifndef NORMD_CLIENT_FLEET_FLEET_CALL_H_
#define NORMD_CLIENT_FLEET_FLEET_CALL_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "client/caller.h"
#include "client/fleet/fleet_state.h"
#include "grpcpp/alarm.h"

namespace normd::client {

// Thread-safe. It lives as long as one of its attempts or timers does. It holds no lock of its own
// while it runs another's function.
class FleetCall final : public PendingCall, public std::enable_shared_from_this<FleetCall> {
 public:
  FleetCall(std::shared_ptr<FleetState> state, const EncodedRequest& request, Duration timeout,
            Caller::Done done);

  // Starts the first attempt. Called once.
  void Start();
  void Cancel() override;

 private:
  class OneAttempt;

  // Starts an attempt, if possible at another server than `avoid`; false when no server is
  // available.
  bool Send(const Server* avoid);
  void OnEnd(const std::shared_ptr<OneAttempt>& attempt, absl::StatusOr<NormalizeResponse> response,
             bool is_abandoned);
  // Plans the attempt after one that failed with `status`; false: there will be none.
  bool PlanRetry(const absl::Status& status, std::shared_ptr<Server> failed);
  // Runs the function after `delay`, with true, or as soon as the call is finished or cancelled.
  void Later(Duration delay, std::function<void(bool)> function);
  void SendLater(Duration delay, std::shared_ptr<Server> avoid);
  void PlanHedge(std::shared_ptr<Server> first);
  // Ends the call if no attempt or retry is pending.
  void FailUnlessBusy(const absl::Status& status);
  void Finish(absl::StatusOr<NormalizeResponse> response);
  Duration Left() const;
  bool IsCancelled();

  const std::shared_ptr<FleetState> state_;
  const EncodedRequest request_;
  const TimePoint deadline_;

  Mutex mutex_;
  Caller::Done done_ ABSL_GUARDED_BY(mutex_);  // Empty once it has run.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  int planned_ ABSL_GUARDED_BY(mutex_) = 0;  // Retries whose time has not come.
  std::vector<std::shared_ptr<OneAttempt>> active_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<grpc::Alarm>> alarms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_FLEET_CALL_H_

// A body that has not come whole when the server stops.

#ifndef NORMD_SERVER_REST_AWAITED_BODY_H_
#define NORMD_SERVER_REST_AWAITED_BODY_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/accept/active_calls.h"

namespace normd {

// Passes the stop on to its connection. Thread-safe.
class AwaitedBody final : public ActiveCalls::Stream {
 public:
  // Called on any thread, with the time since which the body must have been quiet.
  using GiveUp = std::function<void(TimePoint quiet_since, const absl::Status& status)>;

  AwaitedBody(ActiveCalls& active, GiveUp give_up)
      : active_(active), give_up_(std::move(give_up)) {}
  ~AwaitedBody() override { active_.Remove(this); }
  AwaitedBody(const AwaitedBody&) = delete;
  AwaitedBody& operator=(const AwaitedBody&) = delete;

  void Abort(const absl::Status& status) override { give_up_(TimePoint::max(), status); }
  void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) override {
    give_up_(quiet_since, status);
  }

 private:
  ActiveCalls& active_;
  const GiveUp give_up_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_AWAITED_BODY_H_

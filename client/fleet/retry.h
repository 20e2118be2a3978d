// How often, how soon and how much in all a fleet's client retries.

#ifndef NORMD_CLIENT_FLEET_RETRY_H_
#define NORMD_CLIENT_FLEET_RETRY_H_

#include <chrono>

#include "absl/status/status.h"
#include "base/clock.h"

namespace normd::client {

// Named as in the service config of gRPC, whose "retryPolicy" and "retryThrottling" this follows,
// except that a new attempt goes to another server.
struct RetryPolicy {
  int max_attempts = 5;  // Including the first.
  Duration initial_backoff = std::chrono::milliseconds(20);
  Duration max_backoff = std::chrono::seconds(1);
  double backoff_multiplier = 2;
  // Retries and hedges of all calls together: a burst of max_tokens, and token_ratio more for each
  // successful call.
  double max_tokens = 1000;
  double token_ratio = 0.1;
};

// InvalidArgument names the field, what came and what was wanted.
absl::Status CheckRetryPolicy(const RetryPolicy& policy);

// Whether a call that ended with `status` may be retried; if so, `delay` is the time to wait. A
// server's hint takes precedence. Without one UNAVAILABLE is retried at once the first time and
// with a growing pause from then on; RESOURCE_EXHAUSTED, and INTERNAL, which a server returns for a
// failed device, never are. `attempts`: made so far. `jitter`: from 0 to 1, spreads the pauses of
// many clients over half to the whole of them, and those of hints over once to one and a half
// times.
bool MayRetry(const RetryPolicy& policy, const absl::Status& status, int attempts, double jitter,
              Duration& delay);

// A token bucket. Not thread-safe.
class RetryBudget {
 public:
  explicit RetryBudget(const RetryPolicy& policy);

  // Takes a token; false if there is none.
  bool Take();
  void OnSuccess();

 private:
  const double max_;
  const double ratio_;
  double tokens_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_RETRY_H_

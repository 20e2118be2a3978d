#include "client/fleet/retry.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/retry_hint.h"

namespace normd::client {
namespace {

template <typename Value>
absl::Status WrongField(const char* field, const Value& got, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", got, ", wanted ", wanted));
}

Duration Scaled(Duration time, double by) {
  return Duration{static_cast<std::int64_t>(static_cast<double>(time.count()) * by)};
}

}  // namespace

absl::Status CheckRetryPolicy(const RetryPolicy& p) {
  if (p.max_attempts < 1 || p.max_attempts > 100) {
    return WrongField("max_attempts", p.max_attempts, "1 to 100");
  }
  if (p.initial_backoff <= Duration{0} || p.initial_backoff > p.max_backoff) {
    return WrongField("initial_backoff", absl::StrCat(p.initial_backoff.count(), " ns"),
                      "above 0, at most max_backoff");
  }
  if (!(p.backoff_multiplier >= 1)) {
    return WrongField("backoff_multiplier", p.backoff_multiplier, "1 or more");
  }
  if (!(p.max_tokens >= 0)) return WrongField("max_tokens", p.max_tokens, "0 or more");
  if (!(p.token_ratio >= 0)) return WrongField("token_ratio", p.token_ratio, "0 or more");
  return absl::OkStatus();
}

bool MayRetry(const RetryPolicy& policy, const absl::Status& status, int attempts, double jitter,
              Duration& delay) {
  if (attempts >= policy.max_attempts) return false;
  const std::optional<RetryHint> hint = RetryHintOf(status);
  if (hint && !hint->retry) return false;
  const bool may_hint = absl::IsResourceExhausted(status) || absl::IsInternal(status);
  if (!may_hint && !absl::IsUnavailable(status)) return false;
  if (hint) {
    delay = Scaled(hint->after, 1 + jitter / 2);
    return true;
  }
  if (may_hint) return false;
  delay = Duration{0};
  if (attempts > 1) {
    const double grown = std::pow(policy.backoff_multiplier, attempts - 2);
    const double most = static_cast<double>(policy.max_backoff.count()) /
                        static_cast<double>(policy.initial_backoff.count());
    delay = Scaled(policy.initial_backoff, std::min(grown, most) * (0.5 + jitter / 2));
  }
  return true;
}

RetryBudget::RetryBudget(const RetryPolicy& policy)
    : max_(policy.max_tokens), ratio_(policy.token_ratio), tokens_(policy.max_tokens) {}

bool RetryBudget::Take() {
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

void RetryBudget::OnSuccess() { tokens_ = std::min(max_, tokens_ + ratio_); }

}  // namespace normd::client

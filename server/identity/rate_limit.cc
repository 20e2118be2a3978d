#include "server/identity/rate_limit.h"

#include <algorithm>

namespace normd {

Duration RateLimit::Take(const Rate& rate, TimePoint now) {
  if (rate.per_second <= 0) return Duration(0);
  // A century, so that no sum below overflows for any rate and burst.
  constexpr double kLongestNs = 3e18;
  const double step = std::min(1e9 / rate.per_second, kLongestNs);
  const auto step_ns = std::max<std::int64_t>(1, static_cast<std::int64_t>(step));
  const auto ahead_ns =
      static_cast<std::int64_t>(std::min(step * static_cast<double>(rate.burst - 1), kLongestNs));
  const std::int64_t now_ns = now.time_since_epoch().count();
  std::int64_t full_at_ns = full_at_ns_.load(std::memory_order_relaxed);
  for (;;) {
    const std::int64_t begin_ns = std::max(full_at_ns, now_ns);
    const std::int64_t wait_ns = begin_ns - now_ns - ahead_ns;
    if (wait_ns > 0) return Duration(wait_ns);
    if (full_at_ns_.compare_exchange_weak(full_at_ns, begin_ns + step_ns,
                                          std::memory_order_relaxed)) {
      return Duration(0);
    }
  }
}

}  // namespace normd

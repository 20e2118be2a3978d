#include "client/load/early_stop.h"

#include <algorithm>

namespace normd::load {

StopReason EarlyStop::Look(const LoadResult& result) {
  if (result.measured.requests() >= options_.least_requests &&
      result.measured.error_share() > options_.error_share) {
    return StopReason::kErrorShare;
  }
  const Histogram& times = result.measured.response_time;
  if (options_.most_late >= 0 &&
      times.count() - times.CountAtMost(options_.limit) > options_.most_late) {
    return StopReason::kObjectiveMissed;
  }
  return options_.stable_band > 0 && Stable(result) ? StopReason::kStable : StopReason::kNone;
}

bool EarlyStop::Stable(const LoadResult& result) {
  constexpr std::size_t kWindows = 3;
  const Histogram& now = result.measured.response_time;
  if (result.elapsed - window_begin_ < options_.window ||
      now.count() - before_.count() < options_.least_responses_per_window) {
    return false;
  }
  p99_.push_back(now.Since(before_).Percentile(99));
  before_ = now;
  window_begin_ = result.elapsed;
  if (p99_.size() < kWindows) return false;
  const auto [least, most] = std::minmax_element(p99_.end() - kWindows, p99_.end());
  return static_cast<double>(most->count()) <=
         (1 + options_.stable_band) * static_cast<double>(least->count());
}

}  // namespace normd::load

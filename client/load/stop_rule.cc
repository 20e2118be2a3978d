#include "client/load/stop_rule.h"

namespace normd::load {

const char* Name(StopReason reason) {
  switch (reason) {
    case StopReason::kNone: return "running";
    case StopReason::kDuration: return "duration reached";
    case StopReason::kRequests: return "all requests sent";
    case StopReason::kArrivalsEnded: return "arrivals ended";
    case StopReason::kInterrupted: return "interrupted";
    case StopReason::kServerGone: return "server gone";
    case StopReason::kStable: return "p99 stable";
    case StopReason::kErrorShare: return "too many errors";
    case StopReason::kObjectiveMissed: return "objective missed";
  }
  return "unknown";
}

StopRule::StopRule(const StopOptions& options, TimePoint start)
    : options_(options),
      measure_begin_(start + options.warmup),
      end_(options.duration == Duration::max() ? kNever : measure_begin_ + options.duration) {}

StopRule::Decision StopRule::Admit(TimePoint intended) {
  if (stopped()) return Decision::kStop;
  if (intended >= end_) {
    Stop(StopReason::kDuration);
    return Decision::kStop;
  }
  if (intended < measure_begin_) return Decision::kWarmup;
  if (options_.requests == 0) return Decision::kMeasure;
  const std::int64_t before = admitted_.fetch_add(1, std::memory_order_relaxed);
  // Stops with the last request, so that an open loop does not wait for the time of another one.
  if (before + 1 >= options_.requests) Stop(StopReason::kRequests);
  return before < options_.requests ? Decision::kMeasure : Decision::kStop;
}

void StopRule::Observe(absl::StatusCode code) {
  if (options_.unavailable_in_a_row == 0) return;
  if (code != absl::StatusCode::kUnavailable) {
    // Read first: without failures, no thread writes to the shared line.
    if (unavailable_.load(std::memory_order_relaxed) != 0) {
      unavailable_.store(0, std::memory_order_relaxed);
    }
  } else if (unavailable_.fetch_add(1, std::memory_order_relaxed) + 1 >=
             options_.unavailable_in_a_row) {
    Stop(StopReason::kServerGone);
  }
}

void StopRule::Stop(StopReason reason) {
  StopReason none = StopReason::kNone;
  reason_.compare_exchange_strong(none, reason, std::memory_order_relaxed);
}

}  // namespace normd::load

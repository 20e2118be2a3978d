// When to stop.

#ifndef NORMD_CLIENT_LOAD_STOP_RULE_H_
#define NORMD_CLIENT_LOAD_STOP_RULE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "base/clock.h"

namespace normd::load {

struct StopOptions {
  Duration warmup{0};                   // Requests intended before its end are not measured.
  Duration duration = Duration::max();  // After the warm-up.
  std::int64_t requests = 0;            // Measured ones; 0: no limit.
  // Ends a run whose server is gone: this many UNAVAILABLE in a row. 0: never.
  std::int64_t unavailable_in_a_row = 0;
};

enum class StopReason {
  kNone,
  kDuration,
  kRequests,
  kArrivalsEnded,
  kInterrupted,
  kServerGone,
  kStable,
  kErrorShare,
  kObjectiveMissed
};

// "duration reached" and so on.
const char* Name(StopReason reason);

// Decides for each request whether it is sent and whether it counts. Thread-safe and lock-free: the
// atomics are independent flags and counters, so relaxed order suffices.
class StopRule {
 public:
  StopRule(const StopOptions& options, TimePoint start);

  enum class Decision { kStop, kWarmup, kMeasure };
  // Decides for a request with this intended send. kMeasure takes one of the wanted requests.
  Decision Admit(TimePoint intended);

  // Reports a response.
  void Observe(absl::StatusCode code);

  // The first reason is kept.
  void Stop(StopReason reason);
  bool stopped() const { return reason() != StopReason::kNone; }
  StopReason reason() const { return reason_.load(std::memory_order_relaxed); }

  TimePoint measure_begin() const { return measure_begin_; }
  TimePoint end() const { return end_; }  // kNever without a duration.

 private:
  const StopOptions options_;
  const TimePoint measure_begin_;
  const TimePoint end_;
  std::atomic<std::int64_t> admitted_{0};
  std::atomic<std::int64_t> unavailable_{0};
  std::atomic<StopReason> reason_{StopReason::kNone};
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_STOP_RULE_H_

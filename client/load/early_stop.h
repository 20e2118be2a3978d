// When to stop before the time is over: checked from outside, about once a second.

#ifndef NORMD_CLIENT_LOAD_EARLY_STOP_H_
#define NORMD_CLIENT_LOAD_EARLY_STOP_H_

#include <cstdint>
#include <vector>

#include "client/load/load_run.h"

namespace normd::load {

struct EarlyStopOptions {
  // Stops when the response time's p99 of three windows in a row are within this band: the largest
  // is at most 1 + stable_band times the smallest. 0: never.
  double stable_band = 0;
  // The least length of a window; it is longer if a meaningful p99 needs more time.
  Duration window = std::chrono::seconds(2);
  std::int64_t least_responses_per_window = 500;

  // Stops when more than this share of the requests failed, once enough were answered. 1: never.
  double error_share = 1;
  std::int64_t least_requests = 100;

  // Stops when more than this many responses took longer than `limit`: the objective can then no
  // longer be met. Below 0: never.
  std::int64_t most_late = -1;
  Duration limit{0};
};

// Not thread-safe.
class EarlyStop {
 public:
  explicit EarlyStop(const EarlyStopOptions& options) : options_(options) {}

  // Looks at a run; the run continues while this returns kNone.
  StopReason Look(const LoadResult& result);

 private:
  bool Stable(const LoadResult& result);

  const EarlyStopOptions options_;
  Duration window_begin_{0};
  Histogram before_;  // The state when the window began.
  std::vector<Duration> p99_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_EARLY_STOP_H_

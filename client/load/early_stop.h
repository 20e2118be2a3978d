// When to stop before the time is over: looked at from outside, about once a second.

#ifndef NORMD_CLIENT_LOAD_EARLY_STOP_H_
#define NORMD_CLIENT_LOAD_EARLY_STOP_H_

#include <cstdint>
#include <vector>

#include "client/load/load_run.h"

namespace normd::load {

struct EarlyStopOptions {
  // Stops when the p99 of the response time of three windows in a row are within this band: the
  // largest is at most 1 + stable_band times the smallest. 0: never.
  double stable_band = 0;
  // A window lasts so long, and longer where it takes more time for a p99 to mean something.
  Duration window = std::chrono::seconds(2);
  std::int64_t least_responses_per_window = 500;

  // Stops when more than this share of the requests failed; not before so many were answered. 1:
  // never.
  double error_share = 1;
  std::int64_t least_requests = 100;

  // Stops when more than this many responses took longer than `limit`: the objective is missed
  // then, however the run goes on. Below 0: never.
  std::int64_t most_late = -1;
  Duration limit{0};
};

// Not thread-safe.
class EarlyStop {
 public:
  explicit EarlyStop(const EarlyStopOptions& options) : options_(options) {}

  // A look at a run, which goes on while this says kNone.
  StopReason Look(const LoadResult& result);

 private:
  bool Stable(const LoadResult& result);

  const EarlyStopOptions options_;
  Duration window_begin_{0};
  Histogram before_;  // What was recorded when the window began.
  std::vector<Duration> p99_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_EARLY_STOP_H_

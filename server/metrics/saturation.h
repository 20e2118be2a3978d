// The share of time in which calls had to wait before they were computed.

#ifndef NORMD_SERVER_METRICS_SATURATION_H_
#define NORMD_SERVER_METRICS_SATURATION_H_

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace normd {

// 0 when idle, near 1 when a call that arrives has to wait: the larger of
// - the share of time in which the threads on which gRPC runs handlers were at work or waited for a
//   core, on average of these threads. Where the system does not tell, it counts as 0.
// - the share of time in which every lane was at work. It is no matter whether something waits at
//   that time: lanes take all that waits at once, so most of the time nothing does, and yet each
//   call that comes has to wait.
// One connection is served by one thread at a time, so its calls may wait for each other while the
// share is small.
//
// Thread-safe. Reads a few files for each Ratio, and nothing between.
class Saturation {
 public:
  // `no_lane_time` tells for how long, in all, every lane has been at work. `proc` is where the
  // proc file system is. `clock` outlives it.
  Saturation(std::function<Duration()> no_lane_time, const Clock& clock,
             std::string proc = "/proc");

  // Over the last 10 to 20 s, or since the last call if that is longer ago. However often it is
  // called, and by how many, the answer is of such a time.
  double Ratio();

 private:
  struct Reading {
    TimePoint at{};
    Duration busy{};  // A thread's, on average, since it began.
    Duration no_lane{};
  };
  Reading Read() const;
  Duration BusyTime() const;

  const std::function<Duration()> no_lane_time_;
  const Clock& clock_;
  const std::string proc_;
  Mutex mutex_;
  Reading older_ ABSL_GUARDED_BY(mutex_);  // What the next ratio begins at.
  Reading newer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SATURATION_H_

// The last ten minutes of a server's calls, for the live page.

#ifndef NORMD_SERVER_METRICS_TRAFFIC_HISTORY_H_
#define NORMD_SERVER_METRICS_TRAFFIC_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "server/metrics/traffic.h"

namespace normd {

// The calls of one model and method, or of all.
struct CallSums {
  std::int64_t requests = 0;
  std::int64_t failed = 0;
  // In seconds, as Prometheus' histogram_quantile computes them; nullopt without a request.
  std::optional<double> p50;
  std::optional<double> p99;
};

// What happened between two readings, and what the second one found.
struct TrafficInterval {
  double seconds = 0;
  CallSums calls;
  std::int64_t queued = 0;
  double saturation = 0;
  std::int64_t inflight_bytes = 0;
  RejectionCounts rejected{};
  RequestRefusalCounts refused_requests{};
};

struct RecentCalls {
  std::string model;
  Method method = Method::kNormalize;
  CallSums calls;
};

struct RecentTraffic {
  TimePoint at{};      // The last reading.
  double seconds = 0;  // How long ago the last minute began at that time; less after the start.
  CallSums all;
  std::vector<RecentCalls> calls;          // In the last minute, those with a request.
  std::vector<LaneBusyTime> lanes;         // Busy in it.
  std::vector<TrafficInterval> intervals;  // Ascending in time, at most kIntervals.
};

// Keeps a few numbers of each interval and, of those of the last minute, the differences of models
// that were called. Thread-safe.
class TrafficHistory {
 public:
  static constexpr std::size_t kIntervals = 120;
  static constexpr std::size_t kMinuteIntervals = 12;

  // The first reading begins the history. A model whose counts are lower than before has begun
  // anew.
  void Add(Traffic reading, TimePoint at);
  RecentTraffic Recent() const;

 private:
  struct Elapsed {
    double seconds = 0;
    Traffic traffic;
  };

  mutable Mutex mutex_;
  std::optional<Traffic> last_ ABSL_GUARDED_BY(mutex_);
  TimePoint last_at_ ABSL_GUARDED_BY(mutex_){};
  std::deque<TrafficInterval> intervals_ ABSL_GUARDED_BY(mutex_);
  std::deque<Elapsed> minute_ ABSL_GUARDED_BY(mutex_);
};

// The value below which a share of the values lie, between the bounds of its bucket as Prometheus'
// histogram_quantile has it; nullopt without a value.
std::optional<double> QuantileOf(const DurationCounts& counts, double share);

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_TRAFFIC_HISTORY_H_

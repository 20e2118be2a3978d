// A histogram whose recording takes no lock, unlike prometheus::Histogram.

#ifndef NORMD_SERVER_METRICS_HISTOGRAM_H_
#define NORMD_SERVER_METRICS_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "prometheus/client_metric.h"
#include "server/metrics/sharded_cells.h"

namespace normd {

// The buckets of a histogram and the unit of what it records.
struct HistogramScale {
  absl::Span<const std::int64_t>
      bounds;                   // Ascending upper bounds, inclusive, in the recorded unit.
  double recorded_per_exposed;  // 1e9: nanoseconds are recorded, seconds exposed.
};

// How many bounds DurationScale has.
inline constexpr std::size_t kDurationBoundCount = 31;
// Nanoseconds, exposed in seconds: 10 us to 10 s, five bounds to the decade (1, 1.75, 2.5, 3.5, 5),
// so that a quantile is known within a factor of 2.
HistogramScale DurationScale();
HistogramScale LoadScale();           // Nanoseconds, exposed in seconds: decades, 1 ms to 100 s.
HistogramScale BatchRequestsScale();  // Powers of two, 1 to 1024.
HistogramScale BatchBytesScale();     // Powers of four, 256 B to 4 GiB.

// Thread-safe; Record takes no lock, and only the first one allocates: an empty histogram takes no
// memory beside itself.
class Histogram {
 public:
  explicit Histogram(HistogramScale scale);

  // A negative value counts as 0. The sum wraps at 2^63 of the recorded unit (292 years).
  void Record(std::int64_t value);

  bool Untouched() const { return cells_.Untouched(); }
  // The count and the buckets agree with each other; the sum may miss values that are being
  // recorded.
  prometheus::ClientMetric::Histogram Collect() const;
  // How many values each bucket has, not cumulated; the last one is above all bounds. `out` has one
  // place for each bound, and one more.
  void Count(absl::Span<std::int64_t> out) const;

 private:
  HistogramScale scale_;
  ShardedCells cells_;  // One for each bound, one for values above them, one for the sum.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_HISTOGRAM_H_

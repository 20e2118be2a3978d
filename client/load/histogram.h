// A histogram of durations that can be merged: between workers, processes and reports. Written here
// because no package of the distributions has one that merges and can be written to a report.

#ifndef NORMD_CLIENT_LOAD_HISTOGRAM_H_
#define NORMD_CLIENT_LOAD_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace normd::load {

// Log-linear: every power of two is cut into 1024 buckets of equal width, and below 2048 ns each
// nanosecond is one. So a bucket is at most 1/1024 of its value wide, a percentile is within 0.05%
// of the exact one, and every histogram has the same buckets: merging is adding, in any order.
// Durations up to 2^40 ns (18 minutes) are distinguished; longer ones share the last bucket.
// Memory: 8 KiB for each power of two with a value, 248 KiB at most. Not thread-safe.
class Histogram {
 public:
  // Negative durations count as zero.
  void Record(Duration value);

  void Merge(const Histogram& other);
  // The values recorded since `earlier`, a former state of this histogram. Its min and max are
  // those of the buckets.
  Histogram Since(const Histogram& earlier) const;

  std::int64_t count() const { return count_; }
  // Exact; zero when nothing was recorded.
  Duration min() const { return count_ == 0 ? Duration{0} : min_; }
  Duration max() const { return max_; }
  Duration mean() const;

  // The smallest recorded value that at least `percent` % of the values do not exceed, for 0 to
  // 100; zero when nothing was recorded. 0 gives min(), 100 gives max().
  Duration Percentile(double percent) const;

  // The number of values up to `value`, to the bucket: values above it by less than 0.1% count too.
  std::int64_t CountAtMost(Duration value) const;

  // The buckets that are not empty, in ascending order. Add takes `index`; a bucket's values are in
  // [lower, lower + width).
  struct Bucket {
    std::size_t index = 0;
    Duration lower{};
    Duration width{};
    std::int64_t count = 0;
  };
  std::vector<Bucket> Buckets() const;

  // Rebuilds a histogram from another process's: its buckets by index, then its exact extremes and
  // sum. False, and no change, for an index beyond the last or a count below zero.
  bool Add(std::size_t index, std::int64_t count);
  void SetExtremes(Duration min, Duration max, Duration sum);
  Duration sum() const { return sum_; }

 private:
  // Ascending; empty or of kBlockBuckets.
  static constexpr std::size_t kBlockBuckets = 1024;
  std::vector<std::vector<std::int64_t>> blocks_;
  std::int64_t count_ = 0;
  Duration sum_{0};
  Duration min_ = Duration::max();
  Duration max_{0};
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_HISTOGRAM_H_

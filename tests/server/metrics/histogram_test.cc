#include "server/metrics/histogram.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace normd {
namespace {

// How many values the bucket of upper bound `bound` holds alone; the last one for +Inf.
std::vector<std::uint64_t> BucketCounts(const prometheus::ClientMetric::Histogram& histogram) {
  std::vector<std::uint64_t> counts;
  std::uint64_t before = 0;
  for (const auto& bucket : histogram.bucket) {
    counts.push_back(bucket.cumulative_count - before);
    before = bucket.cumulative_count;
  }
  counts.push_back(histogram.sample_count - before);
  return counts;
}

TEST(HistogramScaleTest, DurationsReachFromTenMicrosecondsToTenSecondsInSmallSteps) {
  const HistogramScale scale = DurationScale();
  EXPECT_EQ(scale.bounds.front(), 10'000);
  EXPECT_EQ(scale.bounds.back(), 10'000'000'000);
  for (std::size_t i = 1; i < scale.bounds.size(); ++i) {
    EXPECT_GT(scale.bounds[i], scale.bounds[i - 1]);
    EXPECT_LE(scale.bounds[i], scale.bounds[i - 1] * 2) << scale.bounds[i];
  }
}

TEST(HistogramScaleTest, BatchesCountInPowers) {
  const HistogramScale requests = BatchRequestsScale();
  for (std::size_t i = 0; i < requests.bounds.size(); ++i) {
    EXPECT_EQ(requests.bounds[i], std::int64_t{1} << i);
  }
  const HistogramScale bytes = BatchBytesScale();
  for (std::size_t i = 0; i < bytes.bounds.size(); ++i) {
    EXPECT_EQ(bytes.bounds[i], std::int64_t{256} << (2 * i));
  }
}

TEST(HistogramTest, ABoundBelongsToItsBucketAndTheNextValueToTheNext) {
  const HistogramScale scale = DurationScale();
  for (std::size_t i = 0; i < scale.bounds.size(); ++i) {
    Histogram histogram(scale);
    histogram.Record(scale.bounds[i]);
    histogram.Record(scale.bounds[i] + 1);
    const std::vector<std::uint64_t> counts = BucketCounts(histogram.Collect());
    for (std::size_t k = 0; k < counts.size(); ++k) {
      EXPECT_EQ(counts[k], k == i || k == i + 1 ? 1u : 0u) << "bound " << i << ", bucket " << k;
    }
  }
}

TEST(HistogramTest, ExposesInTheUnitOfItsScale) {
  Histogram histogram(DurationScale());
  histogram.Record(1'500'000);  // 1.5 ms
  histogram.Record(2'000'000'000);
  const auto collected = histogram.Collect();
  EXPECT_EQ(collected.sample_count, 2u);
  EXPECT_DOUBLE_EQ(collected.sample_sum, 2.0015);
  EXPECT_EQ(collected.bucket.front().upper_bound, 1e-5);
  EXPECT_EQ(collected.bucket.back().upper_bound, 10.0);
}

TEST(HistogramTest, CountsExtremesInTheOuterBuckets) {
  Histogram histogram(BatchRequestsScale());
  histogram.Record(-5);
  histogram.Record(0);
  histogram.Record(std::numeric_limits<std::int64_t>::max());
  const auto collected = histogram.Collect();
  const std::vector<std::uint64_t> counts = BucketCounts(collected);
  EXPECT_EQ(counts.front(), 2u);
  EXPECT_EQ(counts.back(), 1u);
  EXPECT_EQ(collected.sample_count, 3u);
  EXPECT_DOUBLE_EQ(collected.sample_sum, 9223372036854775807.0);
}

}  // namespace
}  // namespace normd

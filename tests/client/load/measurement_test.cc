#include "client/load/measurement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/load/histogram.h"
#include "client/tensor/random.h"

namespace normd::load {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;

TimePoint AtMs(int ms) { return TimePoint(milliseconds(ms)); }

Item ItemOf(std::int64_t elements) {
  Item item;
  item.inputs = {
      client::RandomTensor(norm::DType::kFloat32, Shape::Create({elements}).value(), 0, 1, 1)
          .value()};
  return item;
}

TEST(MeasurementTest, ResponseTimeCountsFromTheIntendedSend) {
  Measurement m;
  Outcome outcome;
  outcome.received = AtMs(30);
  m.Record(ItemOf(4), {AtMs(10), AtMs(25)}, outcome);
  EXPECT_EQ(m.response_time.max(), milliseconds(20));
  EXPECT_EQ(m.service_time.max(), milliseconds(5));
  EXPECT_EQ(m.send_lag.max(), milliseconds(15));
  EXPECT_EQ(m.sent_bytes, 16);
  EXPECT_EQ(m.last_received, AtMs(30));
}

TEST(MeasurementTest, AWaitInTheSenderIsLagAndNoService) {
  Measurement m;
  Outcome outcome;
  outcome.sent = AtMs(28);
  outcome.received = AtMs(30);
  m.Record(ItemOf(4), {AtMs(10), AtMs(11)}, outcome);
  EXPECT_EQ(m.response_time.max(), milliseconds(20));
  EXPECT_EQ(m.service_time.max(), milliseconds(2));
  EXPECT_EQ(m.send_lag.max(), milliseconds(18));
}

TEST(MeasurementTest, ErrorsAreCountedByCodeAndNotTimed) {
  Measurement m;
  Outcome refused;
  refused.code = absl::StatusCode::kResourceExhausted;
  refused.message = "queue: full";
  m.Record(ItemOf(1), {}, refused);
  refused.message = "another";
  m.Record(ItemOf(1), {}, refused);
  m.Record(ItemOf(1), {}, Outcome());
  EXPECT_EQ(m.codes[8], 2);
  EXPECT_EQ(m.first_message[8], "queue: full");
  EXPECT_EQ(m.ok(), 1);
  EXPECT_EQ(m.errors(), 2);
  EXPECT_DOUBLE_EQ(m.error_share(), 2.0 / 3);
  EXPECT_EQ(m.response_time.count(), 1);
}

TEST(MeasurementTest, CodesBeyondTheKnownAreCountedAndNotWrittenOutside) {
  Measurement m;
  Outcome strange;
  strange.code = static_cast<absl::StatusCode>(999);
  m.Record(ItemOf(1), {}, strange);
  EXPECT_EQ(m.errors(), 1);
}

TEST(MeasurementTest, BatchSizeIsThatOfBatchesAndNotOfRequests) {
  Measurement m;
  // One batch of 3 and one of 1: the mean over batches is 2, over requests 2.5.
  for (const int requests : {3, 3, 3, 1}) {
    Outcome outcome;
    outcome.batch_requests = requests;
    m.Record(ItemOf(1), {}, outcome);
  }
  EXPECT_DOUBLE_EQ(m.MeanBatchRequests(), 2);
  EXPECT_EQ(m.max_batch_requests, 3);
}

TEST(MeasurementTest, MergesEveryField) {
  Measurement a;
  Measurement b;
  Outcome right;
  right.received = AtMs(5);
  right.output_bytes = 8;
  right.stages[4] = milliseconds(2);
  right.batch_requests = 1;
  right.verdict = Verdict::kRight;
  a.Record(ItemOf(2), {AtMs(0), AtMs(0)}, right);
  Outcome wrong = right;
  wrong.received = AtMs(9);
  wrong.stages[4] = milliseconds(4);
  wrong.verdict = Verdict::kWrong;
  wrong.message = "element 0";
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, wrong);
  Outcome failed;
  failed.code = absl::StatusCode::kCancelled;
  failed.message = "gone";
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, failed);
  Outcome cancelled = failed;
  cancelled.cancelled = true;
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, cancelled);
  b.warmup_requests = 7;

  a.Merge(b);
  EXPECT_EQ(a.requests(), 3);
  EXPECT_EQ(a.ok(), 2);
  EXPECT_EQ(a.first_message[1], "gone");
  EXPECT_EQ(a.sent_bytes, 24);
  EXPECT_EQ(a.received_bytes, 16);
  EXPECT_EQ(a.response_time.count(), 2);
  EXPECT_EQ(a.service_time.max(), milliseconds(9));
  EXPECT_EQ(a.send_lag.count(), 2);
  EXPECT_EQ(a.MeanStage(4), milliseconds(3));
  EXPECT_EQ(a.verified, 2);
  EXPECT_EQ(a.wrong, 1);
  EXPECT_EQ(a.first_wrong, "element 0");
  EXPECT_EQ(a.cancelled, 1);
  EXPECT_EQ(a.warmup_requests, 7);
  EXPECT_EQ(a.last_received, AtMs(9));
  EXPECT_DOUBLE_EQ(a.MeanBatchRequests(), 1);
}

TEST(MeasurementTest, KeepsTheKindsOfRequestsApart) {
  Measurement a;
  Measurement b;
  Item first = ItemOf(1);
  Item third = ItemOf(1);
  third.index = 2;
  Outcome outcome;
  outcome.received = AtMs(5);
  a.Record(first, {AtMs(0), AtMs(0)}, outcome);
  b.Record(third, {AtMs(2), AtMs(2)}, outcome);
  outcome.code = absl::StatusCode::kInternal;
  b.Record(third, {AtMs(2), AtMs(2)}, outcome);
  a.Merge(b);
  ASSERT_EQ(a.items.size(), 3u);
  EXPECT_EQ(a.items[0].response_time.max(), milliseconds(5));
  EXPECT_EQ(a.items[1].response_time.count(), 0);
  EXPECT_EQ(a.items[2].response_time.max(), milliseconds(3));
  EXPECT_EQ(a.items[2].errors, 1);
}

TEST(MeasurementTest, NamesCodes) {
  EXPECT_EQ(CodeName(0), "OK");
  EXPECT_EQ(CodeName(14), "UNAVAILABLE");
  EXPECT_EQ(CodeName(99), "CODE_99");
}

// Spread evenly over the powers of ten from 1 us to 10 minutes.
std::vector<Duration> Values(std::size_t count, std::uint64_t seed) {
  client::SplitMix64 random(seed);
  std::vector<Duration> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.emplace_back(std::llround(1e3 * std::pow(6e8, random.NextDouble())));
  }
  return values;
}

Histogram Of(const std::vector<Duration>& values) {
  Histogram histogram;
  for (const Duration value : values) histogram.Record(value);
  return histogram;
}

void ExpectSame(const Histogram& a, const Histogram& b) {
  EXPECT_EQ(a.count(), b.count());
  EXPECT_EQ(a.min(), b.min());
  EXPECT_EQ(a.max(), b.max());
  EXPECT_EQ(a.sum(), b.sum());
  const auto a_buckets = a.Buckets();
  const auto b_buckets = b.Buckets();
  ASSERT_EQ(a_buckets.size(), b_buckets.size());
  for (std::size_t i = 0; i < a_buckets.size(); ++i) {
    EXPECT_EQ(a_buckets[i].index, b_buckets[i].index);
    EXPECT_EQ(a_buckets[i].count, b_buckets[i].count);
  }
}

// The values ascend as they are made, so that the exact percentiles need no sorting: the largest of
// n independent uniform numbers is U^(1/n), and the next is as much smaller again among n - 1.
TEST(HistogramTest, PercentilesOfTenMillionValuesAreWithinATenthOfAPercent) {
#ifdef NORMD_SANITIZED
  constexpr int kValues = 1000000;  // Ten times slower, and nothing to find in the rest.
#else
  constexpr int kValues = 10000000;
#endif
  client::SplitMix64 random(1);
  Histogram histogram;
  std::vector<std::int64_t> values(kValues);
  double uniform = 1;
  for (int left = kValues; left > 0; --left) {
    uniform *= std::exp(std::log1p(-random.NextDouble()) / left);
    // From 1 us to 10 minutes, with a density that falls as a power.
    const double ns = 1e3 / (1 - uniform * (1 - 1 / 6e8));
    values[static_cast<std::size_t>(left - 1)] = std::llround(ns);
    histogram.Record(Duration{std::llround(ns)});
  }
  for (const double percent : {0.1, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999}) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
    const auto exact = static_cast<double>(values[rank - 1]);
    EXPECT_NEAR(static_cast<double>(histogram.Percentile(percent).count()), exact, 1e-3 * exact)
        << percent;
  }
  EXPECT_EQ(histogram.count(), kValues);
  EXPECT_EQ(histogram.Percentile(0), Duration{values.front()});
  EXPECT_EQ(histogram.Percentile(100), Duration{values.back()});
}

TEST(HistogramTest, CountsWhatIsAtMostATime) {
  const Histogram histogram = Of({Duration{0}, Duration{7}, Duration{7}, microseconds(100)});
  EXPECT_EQ(histogram.CountAtMost(Duration{-1}), 0);
  EXPECT_EQ(histogram.CountAtMost(Duration{0}), 1);
  EXPECT_EQ(histogram.CountAtMost(Duration{7}), 3);
  EXPECT_EQ(histogram.CountAtMost(microseconds(99)), 3);
  EXPECT_EQ(histogram.CountAtMost(microseconds(100)), 4);
  EXPECT_EQ(histogram.CountAtMost(minutes(100)), 4);
  EXPECT_EQ(Histogram().CountAtMost(minutes(1)), 0);
}

TEST(HistogramTest, MergeIsAssociativeAndCommutative) {
  const Histogram a = Of(Values(1000, 1));
  const Histogram b = Of(Values(10, 2));
  const Histogram c = Of({microseconds(1), minutes(30)});
  Histogram left = a;
  left.Merge(b);
  left.Merge(c);
  Histogram right = c;
  Histogram inner = b;
  inner.Merge(a);
  right.Merge(inner);
  ExpectSame(left, right);
}

TEST(HistogramTest, MergeEqualsRecordingTogether) {
  std::vector<Duration> all = Values(500, 3);
  const std::vector<Duration> more = Values(700, 4);
  Histogram merged = Of(all);
  merged.Merge(Of(more));
  all.insert(all.end(), more.begin(), more.end());
  ExpectSame(merged, Of(all));
}

TEST(HistogramTest, EmptyHasNoTimes) {
  const Histogram empty;
  EXPECT_EQ(empty.count(), 0);
  EXPECT_EQ(empty.min(), Duration{0});
  EXPECT_EQ(empty.max(), Duration{0});
  EXPECT_EQ(empty.mean(), Duration{0});
  EXPECT_EQ(empty.Percentile(99), Duration{0});
  EXPECT_TRUE(empty.Buckets().empty());
}

TEST(HistogramTest, MergingAnEmptyOneChangesNothing) {
  const Histogram a = Of(Values(100, 5));
  Histogram merged = a;
  merged.Merge(Histogram());
  ExpectSame(merged, a);
  Histogram other;
  other.Merge(a);
  ExpectSame(other, a);
}

TEST(HistogramTest, ShortTimesAreExactToTheNanosecond) {
  const Histogram histogram = Of({Duration{7}, Duration{2047}, Duration{1023}});
  EXPECT_EQ(histogram.Percentile(50), Duration{1023});
  for (const Histogram::Bucket& bucket : histogram.Buckets()) EXPECT_EQ(bucket.width, Duration{1});
}

TEST(HistogramTest, BucketsHoldWhatWasRecorded) {
  for (const Duration value : Values(300, 6)) {
    const auto buckets = Of({value}).Buckets();
    ASSERT_EQ(buckets.size(), 1u);
    EXPECT_LE(buckets[0].lower, value);
    EXPECT_LT(value, buckets[0].lower + buckets[0].width);
    EXPECT_LE(buckets[0].width.count() * 1024, std::max<std::int64_t>(value.count(), 1024));
  }
}

TEST(HistogramTest, NegativeCountsAsZeroAndTooLongAsTheLastBucket) {
  const Histogram histogram = Of({Duration{-5}, std::chrono::hours(100)});
  EXPECT_EQ(histogram.min(), Duration{0});
  EXPECT_EQ(histogram.max(), std::chrono::hours(100));
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.Buckets().size(), 2u);
}

TEST(HistogramTest, SinceIsWhatCameBetween) {
  const std::vector<Duration> before = Values(300, 7);
  const std::vector<Duration> between = Values(200, 8);
  const Histogram earlier = Of(before);
  Histogram later = earlier;
  later.Merge(Of(between));
  const Histogram since = later.Since(earlier);
  const Histogram exact = Of(between);
  EXPECT_EQ(since.count(), exact.count());
  EXPECT_EQ(since.sum(), exact.sum());
  // The extremes are those of the buckets.
  EXPECT_NEAR(static_cast<double>(since.Percentile(50).count()),
              static_cast<double>(exact.Percentile(50).count()),
              1e-3 * static_cast<double>(exact.Percentile(50).count()));
  EXPECT_LE(since.min(), exact.min());
  EXPECT_GE(since.max(), exact.max());
}

TEST(HistogramTest, IsRebuiltFromItsBuckets) {
  const Histogram original = Of(Values(1000, 9));
  Histogram rebuilt;
  for (const Histogram::Bucket& b : original.Buckets()) EXPECT_TRUE(rebuilt.Add(b.index, b.count));
  rebuilt.SetExtremes(original.min(), original.max(), original.sum());
  ExpectSame(original, rebuilt);
}

TEST(HistogramTest, RefusesBucketsThatItDoesNotHave) {
  Histogram histogram;
  EXPECT_FALSE(histogram.Add(std::size_t{1} << 40, 1));
  EXPECT_FALSE(histogram.Add(3, -1));
  EXPECT_EQ(histogram.count(), 0);
}

}  // namespace
}  // namespace normd::load

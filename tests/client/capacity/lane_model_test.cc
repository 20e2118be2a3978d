#include "client/capacity/lane_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace normd::capacity {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// `batches` batches of n, with times of 1 -+ `spread` around 4 ms + n * 1 ms.
void Measure(std::int64_t n, int batches, double spread, load::LaneTimes& times) {
  load::Histogram histogram;
  for (int i = 0; i < batches; ++i) {
    const double place = batches == 1 ? 0 : 2.0 * i / (batches - 1) - 1;
    const double ms = static_cast<double>(4 + n) * (1 + spread * place);
    for (std::int64_t k = 0; k < n; ++k) histogram.Record(microseconds(std::llround(1000 * ms)));
  }
  times.Add(n, histogram);
}

double MeanMs(const LaneModel& model, std::int64_t requests) {
  client::SplitMix64 random(1);
  double sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    sum += std::chrono::duration<double, std::milli>(model.Draw(requests, random)).count();
  }
  return sum / 20'000;
}

TEST(LaneModelTest, FindsWhatABatchAndWhatARequestCosts) {
  load::LaneTimes times;
  for (const int n : {1, 2, 4, 8}) Measure(n, 100, 0.2, times);
  const LaneModel model = LaneModel::Fit(times).value();
  EXPECT_NEAR(std::chrono::duration<double>(model.base()).count(), 4e-3, 2e-5);
  EXPECT_NEAR(std::chrono::duration<double>(model.each()).count(), 1e-3, 1e-5);
  EXPECT_NEAR(MeanMs(model, 8), 12, 0.1);
  EXPECT_NEAR(MeanMs(model, 6), 10, 0.1);   // Not measured: on the line.
  EXPECT_NEAR(MeanMs(model, 16), 20, 0.2);  // Nor that.
  EXPECT_NEAR(model.MaxRate(8), 8 / 12e-3, 1);
}

TEST(LaneModelTest, DrawsTheMeasuredSpread) {
  load::LaneTimes times;
  Measure(1, 1000, 0.5, times);
  Measure(4, 1000, 0.5, times);
  const LaneModel model = LaneModel::Fit(times).value();
  client::SplitMix64 random(1);
  load::Histogram drawn;
  for (int i = 0; i < 100'000; ++i) drawn.Record(model.Draw(4, random));
  EXPECT_NEAR(std::chrono::duration<double>(drawn.Percentile(5)).count(), 8e-3 * 0.55, 1e-4);
  EXPECT_NEAR(std::chrono::duration<double>(drawn.Percentile(95)).count(), 8e-3 * 1.45, 1e-4);
}

TEST(LaneModelTest, AFewBatchesOfASizeCountForTheLineOnly) {
  load::LaneTimes times;
  Measure(1, 1000, 0, times);
  Measure(2, 1000, 0, times);
  load::Histogram odd;
  for (int i = 0; i < 3; ++i) odd.Record(milliseconds(50));
  times.Add(3, odd);
  EXPECT_NEAR(MeanMs(LaneModel::Fit(times).value(), 3), 7, 1);
}

TEST(LaneModelTest, OneSizeSaysNothingOfWhatBatchesSpare) {
  load::LaneTimes times;
  Measure(4, 100, 0, times);
  const LaneModel model = LaneModel::Fit(times).value();
  EXPECT_NEAR(MeanMs(model, 4), 8, 0.1);
  EXPECT_NEAR(MeanMs(model, 8), 16, 0.1);
}

TEST(LaneModelTest, LargerBatchesThatTookLessTimeDoNotMakeTimesNegative) {
  load::LaneTimes times;
  load::Histogram slow;
  load::Histogram fast;
  for (int i = 0; i < 100; ++i) slow.Record(milliseconds(10));
  for (int i = 0; i < 200; ++i) fast.Record(milliseconds(2));
  times.Add(1, slow);
  times.Add(2, fast);
  const LaneModel model = LaneModel::Fit(times).value();
  EXPECT_GE(MeanMs(model, 50), 0);
  EXPECT_GE(model.each(), Duration{0});
}

TEST(LaneModelTest, NothingMeasuredIsRefused) {
  const auto model = LaneModel::Fit(load::LaneTimes());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(QuantilesTest, OfOneValueIsThatValue) {
  load::Histogram one;
  one.Record(milliseconds(3));
  client::SplitMix64 random(1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_NEAR(static_cast<double>(Quantiles(one).Draw(random).count()), 3e6, 3e3);
  }
}

}  // namespace
}  // namespace normd::capacity

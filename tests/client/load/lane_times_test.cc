#include "client/load/lane_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace normd::load {
namespace {

using std::chrono::milliseconds;

// decode 1, queue 20, gather 2, copies 3 and 5, compute 4 ms.
Outcome OfBatch(std::int64_t requests) {
  Outcome outcome;
  outcome.stages = {milliseconds(1), milliseconds(20), milliseconds(2),
                    milliseconds(3), milliseconds(4),  milliseconds(5)};
  outcome.batch_requests = requests;
  return outcome;
}

TEST(LaneTimesTest, AreWhatTheLaneTookAndTheRestButTheWait) {
  LaneTimes times;
  times.Record(OfBatch(3), milliseconds(40));
  ASSERT_EQ(times.by_batch().size(), 1u);
  EXPECT_EQ(times.by_batch().at(3).max(), milliseconds(14));
  EXPECT_EQ(times.beside().max(), milliseconds(6));
}

TEST(LaneTimesTest, SizesAboveSixtyFourShareAPowerOfTwo) {
  LaneTimes times;
  for (const std::int64_t n : std::vector<std::int64_t>{1, 64, 65, 128, 129, 5'000'000'000}) {
    times.Record(OfBatch(n), milliseconds(40));
  }
  std::vector<std::int64_t> sizes;
  for (const auto& [requests, histogram] : times.by_batch()) sizes.push_back(requests);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 64, 128, 256, std::int64_t{1} << 32}));
  EXPECT_EQ(times.by_batch().at(128).count(), 2);
}

TEST(LaneTimesTest, AResponseThatTellsOfNoBatchIsNotCounted) {
  LaneTimes times;
  times.Record(OfBatch(0), milliseconds(40));
  EXPECT_TRUE(times.by_batch().empty());
  EXPECT_EQ(times.beside().count(), 0);
}

TEST(LaneTimesTest, MergedAreAddedBySize) {
  LaneTimes one;
  LaneTimes other;
  one.Record(OfBatch(1), milliseconds(40));
  other.Record(OfBatch(1), milliseconds(50));
  other.Record(OfBatch(2), milliseconds(50));
  one.Merge(other);
  EXPECT_EQ(one.by_batch().at(1).count(), 2);
  EXPECT_EQ(one.by_batch().at(2).count(), 1);
  EXPECT_EQ(one.beside().count(), 3);
}

}  // namespace
}  // namespace normd::load

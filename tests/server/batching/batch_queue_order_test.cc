// The order of requests: shares of models, and priorities.

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/batching/batch_queue_fixture.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using testing::ElementsAre;

TEST_F(BatchQueueTest, ModelsThatHaveHadAsMuchTakeTurns) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(metrics_, "", "other");
  const auto a = Push(model_).id();
  const auto b = Push(other).id();
  const auto c = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre(a));
  EXPECT_THAT(Pull(), ElementsAre(b));
  EXPECT_THAT(Pull(), ElementsAre(c));
}

TEST_F(BatchQueueTest, AnothersSingleRequestGoesBeforeAFlood) {
  options_.limits.max_rows = 2;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 9; ++i) Push(model_);
  Pull();
  for (int i = 0; i < 3; ++i) {  // Each time it comes back.
    const auto single = Push(other).id();
    EXPECT_THAT(Pull(), ElementsAre(single)) << "round " << i;
    Pull();
  }
}

TEST_F(BatchQueueTest, AModelThatAlwaysComesAnewDoesNotHoldUpAFlood) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 20; ++i) Push(model_);
  int flood = 0;
  for (int i = 0; i < 20; ++i) {
    // Nothing of it waits after each of its batches; its debt is remembered all the same.
    if (queue().waiting_requests() + flood == 20) Push(other);
    Pull();
    flood += pulled_model_ == model_.get() ? 1 : 0;
  }
  EXPECT_EQ(flood, 10);
}

TEST_F(BatchQueueTest, FloodsShareByBytesAndNotByBatches) {
  options_.limits.max_bytes = 64 << 10;
  const auto other = MakeRowModel(other_metrics_, "max_bytes: 8192", "other");
  for (int i = 0; i < 20; ++i) Push(model_, 1, 16 << 10);  // 64 KiB each.
  for (int i = 0; i < 100; ++i) Push(other, 1, 2 << 10);   // 8 KiB each.
  std::int64_t charged = 0;                                // The one's less the other's.
  for (int i = 0; i < 40; ++i) {
    Pull();
    const VirtualTime charge = Charge({1, pulled_bytes_});
    charged += pulled_model_ == model_.get() ? charge : -charge;
    EXPECT_LE(std::abs(charged), Charge({1, 64 << 10})) << "after " << i;
  }
}

TEST_F(BatchQueueTest, AFloodOfHighPriorityHasTwiceTheShare) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 30; ++i) {
    Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh);
    Push(other);
  }
  int high = 0;
  for (int i = 0; i < 30; ++i) {
    Pull();
    high += pulled_model_ == model_.get() ? 1 : 0;
  }
  EXPECT_EQ(high, 20);
}

TEST_F(BatchQueueTest, HigherPrioritiesGoFirstWithinAModel) {
  options_.limits.max_rows = 2;
  const auto push = [&](Priority priority) {
    return Push(model_, 1, 1, kNever, norm::DType::kFloat32, priority).id();
  };
  const auto low = push(Priority::kLow);
  const auto normal = push(Priority::kNormal);
  const auto high = push(Priority::kHigh);
  const auto later = push(Priority::kNormal);
  EXPECT_THAT(Pull(), ElementsAre(high, normal));
  EXPECT_THAT(Pull(), ElementsAre(later, low));
}

TEST_F(BatchQueueTest, ALowPriorityStarvesBehindNoFlood) {
  options_.limits.max_rows = 1;
  options_.priority_aging = microseconds(100);
  const auto low = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kLow).id();
  // Twice as many come as are taken.
  int taken = 0;
  for (bool waits = true; waits; ++taken) {
    for (int i = 0; i < 2; ++i) {
      Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh);
    }
    waits = Pull().front() != low;
    clock_.Advance(microseconds(10));
    ASSERT_LT(taken, 100);
  }
  // The requests of the first 200 us, and no others, went before it.
  EXPECT_EQ(taken, 2 * 20 + 1);
}

TEST_F(BatchQueueTest, TheQueueDelayCountsFromTheOldestWhateverItsPriority) {
  options_.limits.max_queue_delay = microseconds(100);
  const auto low = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kLow).id();
  clock_.Advance(microseconds(60));
  const auto high = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh).id();
  clock_.Advance(microseconds(40));
  EXPECT_THAT(Pull(), ElementsAre(high, low));
}

}  // namespace
}  // namespace normd

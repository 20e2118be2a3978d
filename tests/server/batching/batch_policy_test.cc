#include "server/batching/batch_policy.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/batching/decide_batch.h"

namespace normd {
namespace {

using std::chrono::microseconds;

constexpr TimePoint kStart{std::chrono::hours(1)};

TimePoint At(int us) { return kStart + microseconds(us); }

// A request that waits, and when it came.
struct Waits {
  std::int64_t rows;
  std::int64_t bytes;
  int us = 0;
  Priority priority = Priority::kNormal;
  TimePoint expires = kNever;
};

struct Case {
  std::string name;
  std::vector<Waits> waiting;
  BatchLimits limits;
  std::size_t take = 0;
  TimePoint ask_again = kNever;
  int now_us = 0;
  bool closing = false;
};

BatchLimits Limits(std::int64_t rows, std::int64_t bytes, int delay_us = 0) {
  return {rows, bytes, microseconds(delay_us)};
}

class DecideBatchTest : public testing::TestWithParam<Case> {};

TEST_P(DecideBatchTest, Decides) {
  const Case& c = GetParam();
  std::vector<WaitingRequest> waiting;
  for (const Waits& one : c.waiting) {
    waiting.push_back({one.rows, one.bytes, At(one.us), one.priority, one.expires});
  }
  const BatchDecision decision = DecideBatch(waiting, c.limits, At(c.now_us), c.closing);
  EXPECT_EQ(decision.take, c.take);
  EXPECT_EQ(decision.ask_again, c.ask_again);
}

constexpr std::int64_t kMost = INT64_MAX;

const Case kCases[] = {
    {"NothingWaits", {}, Limits(4, 100)},
    {"NothingWaitsWhileClosing", {}, Limits(4, 100), 0, kNever, 0, true},
    {"WithoutDelayTakesWhatIsThere", {{1, 10}, {1, 10}}, Limits(4, 100), 2},
    {"StopsWhenRowsAreReached", {{2, 1}, {2, 1}, {1, 1}}, Limits(4, 100), 2},
    {"StopsBeforeRowsAreExceeded", {{3, 1}, {2, 1}, {1, 1}}, Limits(4, 100), 1},
    {"StopsWhenBytesAreReached", {{1, 50}, {1, 50}, {1, 1}}, Limits(9, 100), 2},
    {"StopsBeforeBytesAreExceeded", {{1, 60}, {1, 60}, {1, 1}}, Limits(9, 100), 1},
    {"TakesOneOverTheLimitsAlone", {{9, 900}, {1, 1}}, Limits(4, 100), 1},
    {"TakesTheHugestAlone", {{kMost, kMost}, {kMost, kMost}}, Limits(kMost, kMost), 1},
    {"EmptyTensorsCostNothing", {{0, 0}, {0, 0}, {4, 100}}, Limits(4, 100), 3},
    {"HoldsBackForTheDelay", {{1, 10}, {1, 10, 5}}, Limits(4, 100, 50), 0, At(50), 49},
    {"GoesWhenTheOldestHasWaited", {{1, 10}, {1, 10, 49}}, Limits(4, 100, 50), 2, kNever, 50},
    {"GoesAtOnceWhenFull", {{2, 10}, {2, 10}}, Limits(4, 100, 50), 2},
    {"GoesAtOnceWhenTheNextDoesNotFit", {{3, 10}, {2, 10}}, Limits(4, 100, 50), 1},
    {"TheOldestIsNotAlwaysInFront",
     {{1, 10, 30, Priority::kHigh}, {1, 10}},
     Limits(4, 100, 50),
     0,
     At(50),
     20},
    {"DoesNotHoldBackWhileClosing", {{1, 10}}, Limits(4, 100, 50), 1, kNever, 0, true},
    {"HoldsBackForThreeQuartersOfTheShortestWait",
     {{1, 10, 0, Priority::kNormal, At(60)}, {1, 10, 8, Priority::kNormal, At(48)}},
     Limits(4, 100, 50),
     0,
     At(38),
     37},
    {"GoesBeforeItWouldExpire",
     {{1, 10, 0, Priority::kNormal, At(40)}},
     {4, 100, Duration::max()},
     1,
     kNever,
     30},
    {"HoldsBackForeverWithAnEndlessDelay", {{1, 10}}, {4, 100, Duration::max()}, 0, kNever, 1000},
};

INSTANTIATE_TEST_SUITE_P(Table, DecideBatchTest, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

TEST(ReadyAtTest, AgreesWithDecideBatchOnRandomQueues) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto up_to = [&random](int limit) {
    return std::uniform_int_distribution<int>(0, limit)(random);
  };
  for (int i = 0; i < 20000; ++i) {
    std::vector<WaitingRequest> waiting;
    QueueTotals totals;
    for (int n = up_to(6); n > 0; --n) {
      waiting.push_back({up_to(3), up_to(30), At(up_to(20)), Priority::kNormal,
                         up_to(1) == 0 ? kNever : At(20 + up_to(20))});
      totals.rows += waiting.back().rows;
      totals.bytes += waiting.back().bytes;
    }
    totals.requests = static_cast<std::int64_t>(waiting.size());
    const BatchLimits limits = Limits(1 + up_to(8), 1 + up_to(80), up_to(2) * 20);
    for (const WaitingRequest& one : waiting) {
      totals.held_until = std::min(totals.held_until, HeldUntil(one, limits));
    }
    const bool closing = up_to(4) == 0;
    const TimePoint now = At(20 + up_to(40));

    const BatchDecision decision = DecideBatch(waiting, limits, now, closing);
    const TimePoint ready_at = ReadyAt(totals, limits, closing);
    EXPECT_EQ(decision.take > 0, ready_at <= now);
    if (decision.take == 0) {
      EXPECT_EQ(decision.ask_again, ready_at);
    }
  }
}

TEST(DueAtTest, AHigherPriorityGoesFirstUntilTheLowerHasWaitedTheAging) {
  const Duration aging = microseconds(100);
  const auto due = [&](Priority priority, int us) { return DueAt(priority, At(us), aging); };
  EXPECT_LT(due(Priority::kHigh, 99), due(Priority::kNormal, 0));
  EXPECT_GT(due(Priority::kHigh, 101), due(Priority::kNormal, 0));
  EXPECT_LT(due(Priority::kNormal, 99), due(Priority::kLow, 0));
  EXPECT_GT(due(Priority::kNormal, 101), due(Priority::kLow, 0));
  EXPECT_LT(due(Priority::kHigh, 199), due(Priority::kLow, 0));
  EXPECT_GT(due(Priority::kHigh, 201), due(Priority::kLow, 0));
}

TEST(RunsInlineTest, WhenItIsSmallAndOvertakesNobodyAndWantsNoCompany) {
  const WaitingRequest small{1, 1000};
  EXPECT_TRUE(RunsInline(small, 0, Limits(4, 100), 1000));
  EXPECT_FALSE(RunsInline(small, 0, Limits(4, 100), 999)) << "too large";
  EXPECT_FALSE(RunsInline(small, 1, Limits(4, 100), 1000)) << "another waits";
  EXPECT_FALSE(RunsInline(small, 0, Limits(4, 100, 1), 1000)) << "it is to wait for company";
  EXPECT_FALSE(RunsInline({0, 0}, 0, Limits(4, 100), 0)) << "off";
}

TEST(ChargeTest, GrowsWithBytesAndDoublesForEachLevelLess) {
  const auto charge = [](std::int64_t bytes, Priority priority) {
    return Charge({1, bytes, kStart, priority});
  };
  EXPECT_GT(charge(0, Priority::kHigh), 0) << "a flood of empty tensors has its price too";
  EXPECT_GT(charge(1 << 20, Priority::kHigh), charge(1 << 18, Priority::kHigh));
  EXPECT_EQ(charge(5000, Priority::kNormal), 2 * charge(5000, Priority::kHigh));
  EXPECT_EQ(charge(5000, Priority::kLow), 2 * charge(5000, Priority::kNormal));
  EXPECT_GT(charge(INT64_MAX, Priority::kLow), 0);
}

// How fast a line drains.

TEST(TurnPaceTest, KnowsNothingBeforeEightBatchesAndFiveMilliseconds) {
  TurnPace quick;
  for (int i = 0; i < 100; ++i) quick.OnTake(10, At(i));
  EXPECT_EQ(quick.TimeFor(1000), Duration::zero());
  TurnPace few;
  for (int i = 0; i < 8; ++i) few.OnTake(10, At(i * 100'000));
  EXPECT_EQ(few.TimeFor(1000), Duration::zero());
  few.OnTake(10, At(800'000));
  EXPECT_EQ(few.TimeFor(1000), microseconds(10'000'000));
}

TEST(TurnPaceTest, LanesThatAllTakeAtTheSameMomentCountTogether) {
  for (const int lanes : {1, 2, 7, 8, 9, 16, 64}) {
    TurnPace rate;
    for (int round = 0; round < 60; ++round) {
      for (int lane = 0; lane < lanes; ++lane) rate.OnTake(10, At(round * 10'000));
      if (round < 30) continue;
      const double per_cost = 10'000.0 / (10 * lanes);
      const double estimate = std::chrono::duration<double, std::micro>(rate.TimeFor(1000)).count();
      EXPECT_GT(estimate, 1000 * per_cost / 2) << lanes;
      EXPECT_LT(estimate, 1000 * per_cost * 1.2) << lanes;
    }
  }
}

TEST(TurnPaceTest, FollowsWithinTwoSpans) {
  TurnPace rate;
  int now = 0;
  for (int i = 0; i < 50; ++i) rate.OnTake(10, At(now += 1000));
  EXPECT_EQ(rate.TimeFor(10), microseconds(1000));
  for (int i = 0; i < 16; ++i) rate.OnTake(10, At(now += 9000));
  EXPECT_EQ(rate.TimeFor(10), microseconds(9000));
}

TEST(TurnPaceTest, ForgetsAllAtAResetAndDoesNotOverflow) {
  TurnPace rate;
  for (int i = 0; i < 20; ++i) rate.OnTake(1, At(i * 100'000'000));
  EXPECT_GT(rate.TimeFor(std::numeric_limits<std::int64_t>::max()), std::chrono::hours(24 * 365));
  rate.Reset();
  EXPECT_EQ(rate.TimeFor(1000), Duration::zero());
  rate.OnTake(1, At(0));
  EXPECT_EQ(rate.TimeFor(1000), Duration::zero());
}

// Which requests enter. Each combination of what matters, against the rules one by one.

TEST(DecideArrivalTest, FollowsItsRulesInEachCase) {
  for (const bool full : {false, true}) {
    for (const int wait : {0, 1, 74, 75, 76, 99, 100, 101, 5000}) {
      for (const int own : {0, 1, 5}) {
        for (const int most : {0, 1, 2, 3, 6, 7, 8}) {
          SCOPED_TRACE(testing::Message() << full << " " << wait << " " << own << " " << most);
          const Verdict verdict =
              DecideArrival({full, microseconds(wait), microseconds(100), own, most});
          const bool late = wait > 75;
          const bool another_has_clearly_more = most >= own + 2;
          EXPECT_EQ(verdict == Verdict::kEnters, !full && !late);
          EXPECT_EQ(verdict == Verdict::kReplaces, full && !late && another_has_clearly_more);
          EXPECT_EQ(verdict == Verdict::kFindsNoRoom, full && !another_has_clearly_more);
          EXPECT_EQ(verdict == Verdict::kIsLate, late && (!full || another_has_clearly_more));
        }
      }
    }
  }
}

TEST(DecideArrivalTest, WithoutADeadlineOnlyTheLengthCounts) {
  Arrival arrival;
  arrival.wait = Duration(std::int64_t{6} << 60);
  EXPECT_EQ(DecideArrival(arrival), Verdict::kEnters);
  arrival.line_is_full = true;
  EXPECT_EQ(DecideArrival(arrival), Verdict::kFindsNoRoom);
  arrival.most_waiting = 2;
  EXPECT_EQ(DecideArrival(arrival), Verdict::kReplaces);
}

TEST(DecideArrivalTest, WhereNothingWaitsNobodyIsLate) {
  for (const Duration patience : {Duration(0), Duration(1), Duration(2), Duration::max()}) {
    Arrival arrival;
    arrival.patience = patience;
    EXPECT_EQ(DecideArrival(arrival), Verdict::kEnters);
  }
}

}  // namespace
}  // namespace normd

#include "server/identity/rate_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>

#include "tests/support/fake_clock.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RateLimitTest, WithoutARateNothingIsEverRefused) {
  RateLimit limit;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.Take({}, TimePoint()), Duration(0));
}

TEST(RateLimitTest, ABurstGoesAtOnceAndTheRestAtTheRate) {
  FakeClock clock;
  RateLimit limit;
  const Rate rate{10, 3};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << i;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(100)) << "a refusal costs nothing";
  }
  clock.Advance(milliseconds(99));
  EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(1));
  clock.Advance(milliseconds(1));
  EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0));
  EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(100));
  clock.Advance(seconds(100));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << i;
  EXPECT_NE(limit.Take(rate, clock.Now()), Duration(0)) << "a pause saves up no more than a burst";
}

// Against a bucket that is filled and emptied in floating point.
TEST(RateLimitTest, GivesInAnyWindowNoMoreThanTheBurstAndTheRate) {
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const Rate rate{std::uniform_real_distribution<double>(0.5, 2000)(random),
                    static_cast<std::int64_t>(1 + random() % 20)};
    FakeClock clock;
    RateLimit limit;
    double bucket = static_cast<double>(rate.burst);
    for (int i = 0; i < 300; ++i) {
      const Duration wait = limit.Take(rate, clock.Now());
      // Rounding of a nanosecond at each call.
      const double slack = 1e-6 * rate.per_second;
      if (wait == Duration(0)) {
        ASSERT_GE(bucket, 1 - slack) << "seed " << seed << " round " << round;
        bucket -= 1;
      } else {
        ASSERT_LT(bucket, 1 + slack) << "seed " << seed << " round " << round;
      }
      // Half of the time as long as it was told to wait.
      const auto pause =
          wait > Duration(0) && random() % 2 == 0
              ? wait
              : Duration(static_cast<std::int64_t>(
                    std::uniform_real_distribution<double>(0, 2e9)(random) / rate.per_second));
      clock.Advance(pause);
      bucket = std::min(static_cast<double>(rate.burst),
                        bucket + rate.per_second * static_cast<double>(pause.count()) / 1e9);
    }
  }
}

TEST(RateLimitTest, AWaitThatIsKeptIsEnough) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const Rate rate{std::uniform_real_distribution<double>(0.01, 1e6)(random),
                    static_cast<std::int64_t>(1 + random() % 5)};
    FakeClock clock;
    RateLimit limit;
    while (limit.Take(rate, clock.Now()) == Duration(0)) {
    }
    clock.Advance(limit.Take(rate, clock.Now()));
    EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << rate.per_second;
  }
}

TEST(RateLimitTest, TheLargestNumbersAreOnlyLarge) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  FakeClock clock;
  RateLimit limit;
  EXPECT_EQ(limit.Take({1e-300, 1}, clock.Now()), Duration(0));
  EXPECT_GT(limit.Take({1e-300, 1}, clock.Now()), std::chrono::hours(24 * 365));
  RateLimit wide;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(wide.Take({1e9, kMost}, clock.Now()), Duration(0));
  RateLimit slow;
  EXPECT_EQ(slow.Take({1e-300, kMost}, clock.Now()), Duration(0));
}

TEST(RateLimitTest, ThreadsTogetherGetTheBurstAndNoMore) {
  RateLimit limit;
  const TimePoint now{seconds(1)};
  std::atomic<int> taken{0};
  RunThreads(4, [&](int) {
    for (int k = 0; k < 1000; ++k) taken += limit.Take({1, 500}, now) == Duration(0) ? 1 : 0;
  });
  EXPECT_EQ(taken, 500);
}

}  // namespace
}  // namespace normd

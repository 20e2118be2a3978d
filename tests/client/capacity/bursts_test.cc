#include "client/capacity/bursts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace normd::capacity {
namespace {

// Counts of arrivals in windows of 10 ms over 1000 s.
std::vector<double> Counts(load::Arrivals& arrivals) {
  std::vector<double> counts(100'000, 0);
  for (;;) {
    const auto window = static_cast<std::size_t>(*arrivals.Next() / std::chrono::milliseconds(10));
    if (window >= counts.size()) return counts;
    ++counts[window];
  }
}

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  for (const double v : values) m.mean += v / static_cast<double>(values.size());
  for (const double v : values) {
    m.variance += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  }
  return m;
}

TEST(BurstsTest, HaveTheRateInTheMean) {
  const auto arrivals = BurstyArrivals(1000, {8, 0.2, std::chrono::milliseconds(100)}, 5);
  EXPECT_NEAR(MomentsOf(Counts(*arrivals)).mean, 10, 0.3);
}

// In windows far shorter than a burst the rate is one of two, so the variance of the counts is
// mean + share (1 - share) (burst's - quiet's)^2.
TEST(BurstsTest, VaryAsTheirRatesDo) {
  const auto arrivals = BurstyArrivals(1000, {8, 0.2, std::chrono::seconds(1)}, 5);
  const Moments m = MomentsOf(Counts(*arrivals));
  const double quiet = 10 / (1 - 0.2 + 8 * 0.2);
  const double wanted = 10 + 0.2 * 0.8 * std::pow(7 * quiet, 2);
  EXPECT_NEAR(m.variance / wanted, 1, 0.12);
}

TEST(BurstsTest, OfFactorOneArePoisson) {
  const auto arrivals = BurstyArrivals(1000, {1, 0.2, std::chrono::milliseconds(100)}, 5);
  const Moments m = MomentsOf(Counts(*arrivals));
  EXPECT_NEAR(m.variance / m.mean, 1, 0.03);
}

TEST(BurstsTest, AscendAndFollowFromTheSeed) {
  const auto one = BurstyArrivals(100, {}, 5);
  const auto same = BurstyArrivals(100, {}, 5);
  Duration last{0};
  for (int i = 0; i < 10'000; ++i) {
    const Duration next = *one->Next();
    ASSERT_GE(next, last);
    ASSERT_EQ(next, *same->Next());
    last = next;
  }
}

}  // namespace
}  // namespace normd::capacity

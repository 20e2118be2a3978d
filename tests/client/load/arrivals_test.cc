#include "client/load/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace normd::load {
namespace {

std::vector<Duration> Times(Arrivals& arrivals, int count) {
  std::vector<Duration> times;
  for (int i = 0; i < count; ++i) times.push_back(arrivals.Next().value());
  return times;
}

TEST(ConstantArrivalsTest, AreEvenlySpacedWithoutDrift) {
  const auto arrivals = ConstantArrivals(3000);
  const std::vector<Duration> times = Times(*arrivals, 30001);
  EXPECT_EQ(times[0], Duration{0});
  EXPECT_EQ(times[1], Duration{333333});
  EXPECT_EQ(times[30000], std::chrono::seconds(10));
}

TEST(PoissonArrivalsTest, HaveTheMeanAndSpreadOfTheirRate) {
  const auto arrivals = PoissonArrivals(1000, 1);
  const std::vector<Duration> times = Times(*arrivals, 200000);
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    ASSERT_GE(times[i], times[i - 1]);
    const double gap = std::chrono::duration<double>(times[i] - times[i - 1]).count();
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(times.size() - 1);
  const double mean = sum / n;
  // The standard error of the mean is 0.22%.
  EXPECT_NEAR(mean, 1e-3, 1e-5);
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean) / mean, 1.0, 0.02);
}

TEST(PoissonArrivalsTest, AreTheSameForTheSameSeed) {
  EXPECT_EQ(Times(*PoissonArrivals(50, 7), 100), Times(*PoissonArrivals(50, 7), 100));
  EXPECT_NE(Times(*PoissonArrivals(50, 7), 100), Times(*PoissonArrivals(50, 8), 100));
}

TEST(MakeArrivalsTest, RefusesUnknownKindsAndRatesThatAreNone) {
  EXPECT_TRUE(MakeArrivals("constant", 1, 1).ok());
  EXPECT_TRUE(MakeArrivals("poisson", 0.5, 1).ok());
  EXPECT_EQ(MakeArrivals("pareto", 1, 1).status().message(),
            "arrival: \"pareto\", wanted constant or poisson");
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_FALSE(MakeArrivals("constant", rate, 1).ok()) << rate;
  }
}

}  // namespace
}  // namespace normd::load

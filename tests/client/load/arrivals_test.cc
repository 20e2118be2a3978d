#include "client/load/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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

TEST(PoissonArrivalsTest, FollowTheirProfile) {
  const auto arrivals = PoissonArrivals(RateProfile::Parse("1000@10s,0..4000@10s").value(), 1);
  int first = 0;
  int second = 0;
  int third = 0;
  while (const std::optional<Duration> time = arrivals->Next()) {
    ++(*time < seconds(10) ? first : *time < seconds(15) ? second : third);
  }
  // 10000, 5000 and 15000 are wanted; the bounds are five standard deviations.
  EXPECT_NEAR(first, 10000, 500);
  EXPECT_NEAR(second, 5000, 354);
  EXPECT_NEAR(third, 15000, 612);
}

TEST(MakeArrivalsTest, RefusesUnknownKinds) {
  EXPECT_TRUE(MakeArrivals("constant", RateProfile::Constant(1), 1).ok());
  EXPECT_TRUE(MakeArrivals("poisson", RateProfile::Constant(1), 1).ok());
  EXPECT_EQ(MakeArrivals("pareto", RateProfile::Constant(1), 1).status().message(),
            "arrival: \"pareto\", wanted constant or poisson");
}

TEST(TracedArrivalsTest, AreThoseOfTheTraceAndEnd) {
  const auto arrivals = TracedArrivals({Duration{0}, Duration{5}, Duration{5}});
  EXPECT_EQ(Times(*arrivals, 3), (std::vector<Duration>{Duration{0}, Duration{5}, Duration{5}}));
  EXPECT_EQ(arrivals->Next(), std::nullopt);
}

TEST(ParseTraceTest, ReadsOffsetsAndTimestamps) {
  EXPECT_EQ(
      ParseTrace("# seconds\n0\n\n 0.25  # a burst\r\n0.25\n1e1\n").value(),
      (std::vector<Duration>{Duration{0}, milliseconds(250), milliseconds(250), seconds(10)}));
  const auto stamps = ParseTrace("1732153500.5\n1732153501.0\n");
  ASSERT_TRUE(stamps.ok()) << stamps.status();
  EXPECT_EQ(*stamps, (std::vector<Duration>{Duration{0}, milliseconds(500)}));
}

TEST(ParseTraceTest, NamesTheLineThatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(ParseTrace(text).status().message());
  };
  EXPECT_EQ(message("0\nsoon\n"), "line 2: \"soon\", wanted seconds");
  EXPECT_EQ(message("0\n2\n1\n"), "line 3: 1 is before the line above");
  EXPECT_EQ(message("nan"), "line 1: \"nan\", wanted seconds");
  EXPECT_EQ(message("0\ninf"), "line 2: \"inf\", wanted seconds");
  EXPECT_EQ(message("# nothing\n"), "no times, wanted one on each line");
}

}  // namespace
}  // namespace normd::load

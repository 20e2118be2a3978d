#include "client/load/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "client/load/rate_profile.h"

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

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

RateProfile Parse(const char* text) { return RateProfile::Parse(text).value(); }

TEST(RateProfileTest, AStepAsksAtItsRateAndEnds) {
  const RateProfile profile = Parse("100@2s,50@2s");
  EXPECT_EQ(profile.TimeOf(0), Duration{0});
  EXPECT_EQ(profile.TimeOf(100), seconds(1));
  EXPECT_EQ(profile.TimeOf(200), seconds(2));
  EXPECT_EQ(profile.TimeOf(250), seconds(3));
  EXPECT_EQ(profile.TimeOf(299), milliseconds(3980));
  EXPECT_EQ(profile.TimeOf(300), std::nullopt);
}

TEST(RateProfileTest, ARampAsksForTheAreaUnderIt) {
  // After t seconds: 100 t + 50 t^2.
  const RateProfile up = Parse("100..300@2s");
  EXPECT_EQ(up.TimeOf(37.5 + 25), milliseconds(500));
  EXPECT_EQ(up.TimeOf(150), seconds(1));
  EXPECT_EQ(up.TimeOf(400), std::nullopt);
  // After t seconds: 300 t - 50 t^2.
  const RateProfile down = Parse("300..100@2s");
  EXPECT_EQ(down.TimeOf(250), seconds(1));
  // From nothing: 50 t^2; to nothing: 200 t - 50 t^2.
  EXPECT_EQ(Parse("0..200@2s").TimeOf(50), seconds(1));
  EXPECT_EQ(Parse("200..0@2s").TimeOf(150), seconds(1));
}

TEST(RateProfileTest, APauseAsksForNothing) {
  const RateProfile profile = Parse("10@1s,0@5s,10@1s");
  EXPECT_EQ(profile.TimeOf(9), milliseconds(900));
  EXPECT_EQ(profile.TimeOf(10), seconds(6));
  EXPECT_EQ(profile.TimeOf(19), milliseconds(6900));
}

TEST(RateProfileTest, AConstantRateNeverEnds) {
  EXPECT_EQ(RateProfile::Constant(4).TimeOf(1e6), seconds(250000));
}

TEST(RateProfileTest, LeadsAtItsFirstRate) {
  const RateProfile profile = Parse("10..20@10s").WithLead(seconds(2));
  EXPECT_EQ(profile.TimeOf(10), seconds(1));
  EXPECT_EQ(profile.TimeOf(20), seconds(2));
  ASSERT_EQ(profile.segments().size(), 2u);
  EXPECT_EQ(profile.segments()[0].end_rate_per_s, 10);
  EXPECT_EQ(Parse("10@1s").WithLead(Duration{0}).segments().size(), 1u);
}

TEST(RateProfileTest, NamesWhatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(RateProfile::Parse(text).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("no rate"));
  EXPECT_THAT(message("10"), HasSubstr("\"10\" has no time"));
  EXPECT_THAT(message("10@1s,x@2s"), HasSubstr("\"x@2s\" has no rate"));
  EXPECT_THAT(message("10..@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("-1@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("inf@2s"), HasSubstr("no rate"));
  EXPECT_THAT(message("10@0s"), HasSubstr("no time above 0"));
  EXPECT_THAT(message("10@inf"), HasSubstr("no time"));
  EXPECT_THAT(message("0@10s"), HasSubstr("sends nothing"));
}

}  // namespace
}  // namespace normd::load

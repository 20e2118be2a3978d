#include "client/load/rate_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

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

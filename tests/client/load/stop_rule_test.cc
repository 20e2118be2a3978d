#include "client/load/stop_rule.h"

#include <gtest/gtest.h>

namespace normd::load {
namespace {

using std::chrono::seconds;
using Decision = StopRule::Decision;

TimePoint AtSecond(int s) { return TimePoint(seconds(s)); }

TEST(StopRuleTest, WarmsUpThenMeasuresThenStops) {
  StopOptions options;
  options.warmup = seconds(2);
  options.duration = seconds(3);
  StopRule rule(options, AtSecond(10));
  EXPECT_EQ(rule.Admit(AtSecond(10)), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(12) - Duration{1}), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(12)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(15) - Duration{1}), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(15)), Decision::kStop);
  EXPECT_EQ(rule.reason(), StopReason::kDuration);
  EXPECT_EQ(rule.Admit(AtSecond(12)), Decision::kStop);
}

TEST(StopRuleTest, CountsMeasuredRequestsOnly) {
  StopOptions options;
  options.warmup = seconds(1);
  options.requests = 2;
  StopRule rule(options, AtSecond(0));
  EXPECT_EQ(rule.Admit(AtSecond(0)), Decision::kWarmup);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kMeasure);
  EXPECT_EQ(rule.Admit(AtSecond(1)), Decision::kStop);
  EXPECT_EQ(rule.reason(), StopReason::kRequests);
  EXPECT_EQ(rule.end(), kNever);
}

TEST(StopRuleTest, GivesUpAfterUnavailableInARow) {
  StopOptions options;
  options.unavailable_in_a_row = 3;
  StopRule rule(options, AtSecond(0));
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable, absl::StatusCode::kOk,
        absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable}) {
    rule.Observe(code);
    EXPECT_FALSE(rule.stopped());
  }
  rule.Observe(absl::StatusCode::kUnavailable);
  EXPECT_EQ(rule.reason(), StopReason::kServerGone);
}

TEST(StopRuleTest, KeepsTheFirstReason) {
  StopRule rule(StopOptions(), AtSecond(0));
  rule.Stop(StopReason::kInterrupted);
  rule.Stop(StopReason::kDuration);
  EXPECT_EQ(rule.reason(), StopReason::kInterrupted);
}

}  // namespace
}  // namespace normd::load

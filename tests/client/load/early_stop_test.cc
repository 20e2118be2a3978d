#include "client/load/early_stop.h"

#include <gtest/gtest.h>

#include <cmath>

namespace normd::load {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A run that goes on for a second, with so many responses after `time` each, between two looks.
class Load {
 public:
  const LoadResult& Second(int answers, Duration time) {
    result_.elapsed += seconds(1);
    result_.measured.codes[0] += answers;
    for (int i = 0; i < answers; ++i) result_.measured.response_time.Record(time);
    return result_;
  }
  const LoadResult& Errors(int errors) {
    result_.measured.codes[14] += errors;
    return result_;
  }

 private:
  LoadResult result_;
};

EarlyStopOptions WithinTenPercent() {
  EarlyStopOptions options;
  options.stable_band = 0.1;
  options.window = seconds(1);
  options.least_responses_per_window = 10;
  return options;
}

TEST(EarlyStopTest, StopsWhenThreeWindowsInARowAgree) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  EXPECT_EQ(stop.Look(run.Second(10, milliseconds(50))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1000))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1090))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1050))), StopReason::kStable);
}

TEST(EarlyStopTest, ADriftIsNotStableThoughEachStepIsSmall) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  for (int i = 0; i < 20; ++i) {
    // Each is 8 % above the one before, and so 16 % above the one before that.
    EXPECT_EQ(stop.Look(run.Second(10, microseconds(static_cast<int>(1000 * std::pow(1.08, i))))),
              StopReason::kNone);
  }
}

TEST(EarlyStopTest, AWindowWaitsForEnoughResponses) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(stop.Look(run.Second(5, milliseconds(1))), StopReason::kNone) << i;
  }
  EXPECT_EQ(stop.Look(run.Second(5, milliseconds(1))), StopReason::kStable);
}

TEST(EarlyStopTest, StopsAtTheErrorShareOnceThereAreEnough) {
  EarlyStopOptions options;
  options.error_share = 0.5;
  options.least_requests = 20;
  EarlyStop stop(options);
  Load run;
  EXPECT_EQ(stop.Look(run.Errors(19)), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(19, milliseconds(1))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Errors(1)), StopReason::kErrorShare);
}

TEST(EarlyStopTest, NeverStopsByDefault) {
  EarlyStop stop({});
  Load run;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(stop.Look(run.Second(1000, milliseconds(1))), StopReason::kNone);
    EXPECT_EQ(stop.Look(run.Errors(10000)), StopReason::kNone);
  }
}

TEST(EarlyStopTest, StopsWhenMoreResponsesAreLateThanTheObjectiveAllows) {
  EarlyStopOptions options;
  options.most_late = 2;
  options.limit = milliseconds(5);
  EarlyStop stop(options);
  Load run;
  EXPECT_EQ(stop.Look(run.Second(1000, milliseconds(4))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(2, milliseconds(6))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(1, milliseconds(6))), StopReason::kObjectiveMissed);
}

}  // namespace
}  // namespace normd::load

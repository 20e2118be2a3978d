#include "client/normload/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// `ok` answers of `time` each after `elapsed`.
LoadResult After(Duration elapsed, std::int64_t ok, Duration time) {
  LoadResult result;
  result.elapsed = elapsed;
  result.measured.codes[0] = ok;
  for (std::int64_t i = 0; i < ok; ++i) result.measured.response_time.Record(time);
  return result;
}

std::int64_t LinesOf(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(ProgressTest, IntervalsTellWhatCameBetweenTwoLooks) {
  Progress progress(nullptr, false);
  progress.Look(After(seconds(1), 10, milliseconds(1)));
  LoadResult later = After(seconds(3), 10, milliseconds(1));
  for (int i = 0; i < 40; ++i) later.measured.response_time.Record(milliseconds(8));
  later.measured.codes[0] = 50;
  later.measured.codes[14] = 2;
  progress.Look(later);
  ASSERT_EQ(progress.intervals().size(), 2u);
  const Interval& second = progress.intervals()[1];
  EXPECT_EQ(second.ok, 40);
  EXPECT_EQ(second.errors, 2);
  EXPECT_EQ(second.rate(), 20);
  EXPECT_NEAR(static_cast<double>(second.p50.count()), 8e6, 8e3);
}

TEST(ProgressTest, ShortIntervalsEndOnlyWithTheRun) {
  Progress progress(nullptr, false);
  progress.Look(After(milliseconds(100), 1, milliseconds(1)));
  EXPECT_TRUE(progress.intervals().empty());
  progress.Finish(After(milliseconds(200), 2, milliseconds(1)));
  EXPECT_EQ(progress.intervals().size(), 1u);
}

TEST(ProgressTest, DrawsItsViewOverAndOverOnATerminal) {
  std::ostringstream out;
  StopOptions goal;
  goal.duration = seconds(4);
  Progress progress(&out, true, goal);
  progress.Look(LoadResult());
  EXPECT_EQ(out.str(), "\r\x1b[Jwarm-up: 0 responses\n");
  progress.Look(After(seconds(1), 1000, milliseconds(2)));
  out.str("");
  progress.Look(After(seconds(2), 3000, milliseconds(2)));
  const std::string view = out.str();
  EXPECT_THAT(view, StartsWith("\x1b[5A\r\x1b[J[███"));  // Over the five lines before.
  EXPECT_THAT(view, HasSubstr("50 %  2.0 s, in flight 0, errors 0\n"));
  EXPECT_THAT(view, HasSubstr("ok/s     2000.000     ▅█\n"));
  EXPECT_THAT(view, HasSubstr("p50         2.000 ms  ██\n"));
  out.str("");
  progress.Finish(After(seconds(3), 3000, milliseconds(2)));
  EXPECT_THAT(out.str(), StartsWith("\x1b[5A\r\x1b[J    3.0 s  75 %       1000/s"));
  EXPECT_EQ(LinesOf(out.str()), 1);
}

TEST(ProgressTest, PrintsLinesElsewhere) {
  std::ostringstream out;
  Progress progress(&out, false);
  progress.Look(LoadResult());
  progress.Look(After(seconds(1), 1000, milliseconds(2)));
  progress.Finish(After(seconds(2), 3000, milliseconds(2)));
  EXPECT_THAT(out.str(), StartsWith("warm-up: 0 responses\n"));
  EXPECT_THAT(out.str(), HasSubstr("2000/s"));
  EXPECT_THAT(out.str(), HasSubstr("p50     2.000 ms"));
  EXPECT_EQ(LinesOf(out.str()), 3);
  for (const char no : {'\r', '\x1b', '%'}) EXPECT_EQ(out.str().find(no), std::string::npos);
}

TEST(ProgressTest, ASecondWithoutAResponseHasNoTimes) {
  std::ostringstream out;
  Progress progress(&out, false);
  LoadResult result;
  result.elapsed = seconds(1);
  result.measured.codes[14] = 5;
  progress.Look(result);
  EXPECT_THAT(out.str(), HasSubstr("0/s  no response with OK  errors 5"));
}

TEST(ProgressTest, TellsHowMuchOfTheRunIsOver) {
  std::ostringstream out;
  StopOptions goal;
  goal.duration = seconds(10);
  goal.requests = 1000;
  Progress progress(&out, false, goal);
  LoadResult result = After(seconds(1), 200, milliseconds(2));
  result.inflight = 7;
  progress.Look(result);
  EXPECT_THAT(out.str(), HasSubstr("1.0 s  20 %  "));
  EXPECT_THAT(out.str(), HasSubstr("in flight 7"));
  progress.Finish(After(seconds(12), 300, milliseconds(2)));
  EXPECT_THAT(out.str(), HasSubstr("12.0 s 100 %  "));
}

}  // namespace
}  // namespace normd::load

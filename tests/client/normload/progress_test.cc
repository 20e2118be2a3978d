#include "client/normload/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(ProgressTest, PrintsOneLineOverAndOverOnATerminalOnly) {
  std::ostringstream terminal;
  std::ostringstream file;
  for (const bool is_terminal : {true, false}) {
    Progress progress(is_terminal ? &terminal : &file, is_terminal);
    progress.Look(LoadResult());
    progress.Look(After(seconds(1), 1000, milliseconds(2)));
    progress.Finish(After(seconds(2), 3000, milliseconds(2)));
  }
  EXPECT_THAT(terminal.str(), StartsWith("\rwarm-up: 0 answers\x1b[K\r"));
  EXPECT_THAT(terminal.str(), HasSubstr("1000/s"));
  EXPECT_EQ(terminal.str().find('\n'), terminal.str().size() - 1);
  EXPECT_EQ(file.str().find('\r'), std::string::npos);
  EXPECT_THAT(file.str(), HasSubstr("2000/s"));
  EXPECT_THAT(file.str(), HasSubstr("p50     2.000 ms"));
  EXPECT_EQ(file.str().find('\x1b'), std::string::npos);
  EXPECT_EQ(file.str().find('%'), std::string::npos);
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

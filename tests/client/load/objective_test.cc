#include "client/load/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace normd::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Answers with OK after 1 ms, 2 ms, ... `ok` ms, within ten seconds.
LoadResult Answers(int ok) {
  LoadResult result;
  result.elapsed = seconds(10);
  result.measured.codes[0] = ok;
  for (int i = 1; i <= ok; ++i) result.measured.response_time.Record(milliseconds(i));
  return result;
}

TEST(ObjectiveTest, IsReadAndWritten) {
  const auto objective = ParseObjective("p99.9=5ms");
  ASSERT_TRUE(objective.ok()) << objective.status();
  EXPECT_EQ(objective->percent, 99.9);
  EXPECT_EQ(objective->limit, milliseconds(5));
  EXPECT_EQ(objective->ToString(), "p99.9 <= 5ms");
  for (const char* wrong :
       {"", "99=5ms", "p99", "p0=5ms", "p101=5ms", "p99=0s", "p99=5", "pxx=1s", "p99=inf"}) {
    EXPECT_THAT(std::string(ParseObjective(wrong).status().message()), HasSubstr("such as p99=5ms"))
        << wrong;
  }
}

TEST(ObjectiveTest, IsMetWhenThePercentileIsWithinTheLimit) {
  const LoadResult result = Answers(100);
  const ObjectiveResult met = Judge({90, milliseconds(91)}, result, 0);
  EXPECT_TRUE(met.met);
  EXPECT_NEAR(static_cast<double>(met.reached.count()), 90e6, 90e3);
  EXPECT_FALSE(Judge({90, milliseconds(89)}, result, 0).met);
}

TEST(ObjectiveTest, GoodputCountsResponsesWithinTheLimitOnly) {
  LoadResult result = Answers(100);
  result.measured.codes[8] = 50;
  result.unsent = 50;
  const ObjectiveResult judged = Judge({99, milliseconds(40)}, result, 1);
  EXPECT_EQ(judged.within, 40);
  EXPECT_DOUBLE_EQ(judged.Goodput(result), 4);
  EXPECT_DOUBLE_EQ(judged.WithinShare(result), 0.2);
}

TEST(ObjectiveTest, ErrorsAndABacklogMissIt) {
  LoadResult errors = Answers(99);
  errors.measured.codes[14] = 1;
  EXPECT_FALSE(Judge({99, seconds(1)}, errors, 0).met);
  EXPECT_TRUE(Judge({99, seconds(1)}, errors, 0.01).met);
  LoadResult behind = Answers(100);
  behind.unsent = 1;
  EXPECT_FALSE(Judge({99, seconds(1)}, behind, 0).met);
  EXPECT_FALSE(Judge({99, seconds(1)}, LoadResult(), 0).met);
}

}  // namespace
}  // namespace normd::load

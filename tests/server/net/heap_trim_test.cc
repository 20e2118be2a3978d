#include "server/net/heap_trim.h"

#include <gtest/gtest.h>

#include <chrono>

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(seconds(1000));
constexpr std::int64_t kMuch = 1 << 20;

TEST(HeapTrimTest, LooksSoonAfterAnEndAndAgainForAMinute) {
  HeapTrim trim;
  EXPECT_FALSE(trim.waits());
  trim.OnEnd(1000, kStart);
  EXPECT_FALSE(trim.waits()) << "a connection that has received little";
  trim.OnEnd(kMuch, kStart);
  EXPECT_FALSE(trim.Check(kStart + milliseconds(900)));
  for (const int second : {1, 11, 21, 31, 41, 51}) {
    EXPECT_TRUE(trim.waits());
    EXPECT_TRUE(trim.Check(kStart + seconds(second)));
    EXPECT_FALSE(trim.Check(kStart + seconds(second) + milliseconds(9900)));
  }
  EXPECT_FALSE(trim.waits());
}

TEST(HeapTrimTest, ManyEndsAreOneLookInTenSecondsAndTheLastOneHasItsMinute) {
  HeapTrim trim;
  int looks = 0;
  TimePoint now = kStart;
  for (; now < kStart + seconds(100); now += milliseconds(100)) {
    trim.OnEnd(kMuch, now);
    looks += trim.Check(now);
  }
  EXPECT_GE(looks, 9);
  EXPECT_LE(looks, 11);
  EXPECT_TRUE(trim.Check(now + seconds(11)));
  EXPECT_TRUE(trim.Check(now + seconds(50)));
  EXPECT_FALSE(trim.waits());
}

TEST(HeapTrimTest, AnEndAfterAllLooksBeginsThemAnew) {
  HeapTrim trim;
  trim.OnEnd(kMuch, kStart);
  for (int second = 1; second < 70; ++second) trim.Check(kStart + seconds(second));
  ASSERT_FALSE(trim.waits());
  trim.OnEnd(kMuch, kStart + seconds(100));
  EXPECT_TRUE(trim.Check(kStart + seconds(101)));
  EXPECT_TRUE(trim.waits());
}

}  // namespace
}  // namespace normd

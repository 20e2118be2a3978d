#include "server/net/heap_trim.h"

#include <gtest/gtest.h>

#include <chrono>

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(seconds(1000));
constexpr std::int64_t kMuch = 1 << 20;

TEST(HeapTrimTest, LooksSoonAfterAnEndAndOnceMoreLater) {
  HeapTrim trim;
  EXPECT_FALSE(trim.waits());
  trim.OnEnd(1000, kStart);
  EXPECT_FALSE(trim.waits()) << "a connection that has received little";
  trim.OnEnd(kMuch, kStart);
  EXPECT_TRUE(trim.Check(kStart + seconds(2)));
  EXPECT_FALSE(trim.Check(kStart + seconds(39)));
  EXPECT_TRUE(trim.waits());
  EXPECT_TRUE(trim.Check(kStart + seconds(41)));
  EXPECT_FALSE(trim.waits());
}

TEST(HeapTrimTest, ManyEndsAreOneLookInTenSecondsAndTheLastOneHasItsOwn) {
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
  EXPECT_TRUE(trim.Check(now + seconds(40)));
  EXPECT_FALSE(trim.waits());
}

}  // namespace
}  // namespace normd

#include "base/periodic_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace normd {
namespace {

TEST(PeriodicThreadTest, WorksAgainAfterThePeriod) {
  std::atomic<int> calls{0};
  PeriodicThread thread("test", std::chrono::milliseconds(1), [&calls] {
    ++calls;
    calls.notify_all();
  });
  for (int seen = 0; seen < 3; seen = calls) calls.wait(seen);
}

TEST(PeriodicThreadTest, WorksAtOnceAndEndsWithinThePeriod) {
  std::atomic<int> calls{0};
  {
    PeriodicThread thread("test", std::chrono::hours(1), [&calls] {
      ++calls;
      calls.notify_all();
    });
    calls.wait(0);
  }
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace normd

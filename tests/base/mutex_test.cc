#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace normd {
namespace {

struct Shared {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, ExcludesOtherThreads) {
  Shared shared;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&shared] {
      for (int i = 0; i < 1000; ++i) {
        MutexLock lock(shared.mutex);
        ++shared.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.value, 4000);
}

TEST(CondVarTest, WaitReturnsAfterASignal) {
  Shared shared;
  std::thread setter([&shared] {
    MutexLock lock(shared.mutex);
    shared.value = 7;
    shared.changed.SignalAll();
  });
  {
    MutexLock lock(shared.mutex);
    while (shared.value == 0) shared.changed.Wait(shared.mutex);
    EXPECT_EQ(shared.value, 7);
  }
  setter.join();
}

TEST(CondVarTest, WaitUntilReturnsWithoutASignalWhenItsDeadlineIsPast) {
  Shared shared;
  const SteadyClock clock;
  MutexLock lock(shared.mutex);
  const TimePoint deadline = clock.Now() + std::chrono::milliseconds(1);
  while (clock.Now() < deadline) shared.changed.WaitUntil(shared.mutex, deadline);
  EXPECT_GE(clock.Now(), deadline);
}

TEST(CondVarTest, WaitUntilNeverWaitsForASignal) {
  Shared shared;
  std::thread setter([&shared] {
    MutexLock lock(shared.mutex);
    shared.value = 7;
    shared.changed.SignalOne();
  });
  {
    MutexLock lock(shared.mutex);
    while (shared.value == 0) shared.changed.WaitUntil(shared.mutex, kNever);
    EXPECT_EQ(shared.value, 7);
  }
  setter.join();
}

}  // namespace
}  // namespace normd

#include "base/task_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/periodic_thread.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

TEST(TaskThreadTest, RunsWhatItAcceptedInOrderBeforeItEnds) {
  std::vector<int> ran;
  {
    TaskThread thread("test", 100);
    for (int i = 0; i < 100; ++i) {
      // The thread may have begun on some: at most 100 wait in any case.
      ASSERT_TRUE(thread.Submit([&ran, i] { ran.push_back(i); }));
    }
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

TEST(TaskThreadTest, ATaskWithoutMemoryEndsAlone) {
  std::atomic<int> ran{0};
  const auto fail = [&ran] {
    ++ran;
    throw std::bad_alloc();
  };
  {
    TaskThread thread("test", 2);
    ASSERT_TRUE(thread.Submit(fail));
    ASSERT_TRUE(thread.Submit([&ran] { ++ran; }));
  }
  EXPECT_EQ(ran, 2);
  ran = 0;
  PeriodicThread again("test", std::chrono::milliseconds(1), fail);
  WaitUntil([&ran] { return ran >= 2; });
}

TEST(TaskThreadTest, RefusesMoreThanMayWait) {
  Mutex gate;
  gate.Lock();
  int ran = 0;
  {
    TaskThread thread("test", 2);
    auto task = [&] {
      MutexLock lock(gate);
      ++ran;
    };
    int accepted = 0;
    // One may be with the thread, two wait.
    while (accepted < 4 && thread.Submit(task)) ++accepted;
    EXPECT_GE(accepted, 2);
    EXPECT_LE(accepted, 3);
    gate.Unlock();
  }
  EXPECT_GE(ran, 2);
}

TEST(TaskThreadTest, WithdrawsWhatWaitsAndMakesRoom) {
  Mutex gate;
  gate.Lock();
  std::vector<int> ran;
  {
    TaskThread thread("test", 2);
    const auto task = [&gate, &ran](int i) {
      return [&gate, &ran, i] {
        MutexLock lock(gate);
        ran.push_back(i);
      };
    };
    EXPECT_NE(thread.Submit(task(0)), 0u);
    EXPECT_NE(thread.Submit(task(1)), 0u);
    // There is room for the third when the thread has taken the first, with which it waits.
    TaskThread::Ticket waiting = 0;
    WaitUntil([&] { return (waiting = thread.Submit(task(2))) != 0; });
    EXPECT_TRUE(thread.Withdraw(waiting));
    EXPECT_FALSE(thread.Withdraw(waiting));  // Once.
    EXPECT_NE(thread.Submit(task(3)), 0u);
    gate.Unlock();
  }
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 3}));
}

TEST(TaskThreadTest, PausesBeforeTheNextTaskUntilItEnds) {
  std::atomic<bool> paused{false};
  std::atomic<bool> ending{false};
  {
    TaskThread thread("test", 2);
    thread.Submit([&] {
      thread.Pause(std::chrono::hours(1));
      paused = true;
    });
    thread.Submit([&ending] { EXPECT_TRUE(ending); });
    WaitUntil([&] { return paused.load(); });
    ending = true;
  }
}

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

TEST(PeriodicThreadTest, WorksBeforeItsTimeWhenHurriedButNotBeforeTheLeast) {
  constexpr auto kLeast = std::chrono::milliseconds(50);
  std::atomic<int> calls{0};
  const auto begin = std::chrono::steady_clock::now();
  PeriodicThread thread(
      "test", std::chrono::hours(1),
      [&calls] {
        ++calls;
        calls.notify_all();
      },
      kLeast);
  calls.wait(0);
  thread.Hurry();
  calls.wait(1);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kLeast);
}

struct Shared {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, ExcludesOtherThreads) {
  Shared shared;
  RunThreads(4, [&shared](int) {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(shared.mutex);
      ++shared.value;
    }
  });
  MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.value, 4000);
}

TEST(CondVarTest, WaitsReturnAfterASignalHoweverLongTheyMayLast) {
  for (const bool has_deadline : {false, true}) {
    Shared shared;
    std::thread setter([&] {
      MutexLock lock(shared.mutex);
      shared.value = 7;
      has_deadline ? shared.changed.SignalOne() : shared.changed.SignalAll();
    });
    {
      MutexLock lock(shared.mutex);
      while (shared.value == 0) {
        if (has_deadline) {
          shared.changed.WaitUntil(shared.mutex, kNever);
        } else {
          shared.changed.Wait(shared.mutex);
        }
      }
      EXPECT_EQ(shared.value, 7);
    }
    setter.join();
  }
}

TEST(CondVarTest, WaitUntilReturnsWithoutASignalWhenItsDeadlineIsPast) {
  Shared shared;
  const SteadyClock clock;
  MutexLock lock(shared.mutex);
  const TimePoint deadline = clock.Now() + std::chrono::milliseconds(1);
  while (clock.Now() < deadline) shared.changed.WaitUntil(shared.mutex, deadline);
  EXPECT_GE(clock.Now(), deadline);
}

}  // namespace
}  // namespace normd

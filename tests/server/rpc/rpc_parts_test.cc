// ActiveCalls, DeadlineOf, TaskThread and CatchAll.

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "server/accept/active_calls.h"
#include "server/accept/client_status.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/task_thread.h"
#include "tests/support/fake_clock.h"

namespace normd {
namespace {

TEST(ActiveCallsTest, WaitsUntilTheLastCallLeaves) {
  ActiveCalls active;
  active.Enter();
  active.Enter();
  std::thread calls([&] {
    active.Leave();
    active.Leave();
  });
  EXPECT_TRUE(active.WaitNone(kNever, [] { return false; }));
  EXPECT_EQ(active.count(), 0);
  calls.join();
}

TEST(ActiveCallsTest, GivesUpWhenAskedTo) {
  ActiveCalls active;
  active.Enter();
  std::atomic<bool> give_up{false};
  std::thread other([&] {
    give_up = true;
    active.Recheck();
  });
  EXPECT_FALSE(active.WaitNone(kNever, [&] { return give_up.load(); }));
  other.join();
  active.Leave();
}

TEST(ActiveCallsTest, GivesUpWhenTheTimeHasPassed) {
  ActiveCalls active;
  active.Enter();
  EXPECT_FALSE(active.WaitNone(TimePoint{}, [] { return false; }));
  active.Leave();
}

// As gRPC makes them of grpc-timeout: up to 99999999 of every unit.
TEST(DeadlineTest, IsRightForEveryTimeoutThatAClientMaySend) {
  FakeClock clock;
  clock.Advance(std::chrono::hours(1));
  const gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
  EXPECT_EQ(DeadlineOf(gpr_inf_future(GPR_CLOCK_MONOTONIC), clock), kNever);
  EXPECT_LE(DeadlineOf(gpr_inf_past(GPR_CLOCK_MONOTONIC), clock), clock.Now());
  const double seconds_of[] = {3600, 60, 1, 1e-3, 1e-6, 1e-9};
  for (const double unit : seconds_of) {
    for (const std::int64_t value : {0L, 1L, 2562047L, 2562048L, 2600000L, 9999999L, 99999999L}) {
      const double seconds = unit * static_cast<double>(value);
      const gpr_timespec span =
          unit >= 1 ? gpr_time_from_seconds(static_cast<std::int64_t>(seconds), GPR_TIMESPAN)
                    : gpr_time_from_nanos(static_cast<std::int64_t>(seconds * 1e9), GPR_TIMESPAN);
      const TimePoint deadline = DeadlineOf(gpr_time_add(now, span), clock);
      if (seconds > 366.0 * 24 * 3600) {
        EXPECT_EQ(deadline, kNever) << value << " of " << unit << " s";
        continue;
      }
      // The time since `now` was read is lost.
      const double left = std::chrono::duration<double>(deadline - clock.Now()).count();
      EXPECT_LE(left, seconds + 1e-6) << value << " of " << unit << " s";
      EXPECT_GE(left, seconds - 60) << value << " of " << unit << " s";
    }
  }
}

TEST(TaskThreadTest, RunsWhatItAcceptedInOrderBeforeItEnds) {
  std::vector<int> ran;
  {
    TaskThread thread(100);
    for (int i = 0; i < 100; ++i) {
      // The thread may have begun on some: at most 100 wait in any case.
      ASSERT_TRUE(thread.Submit([&ran, i] { ran.push_back(i); }));
    }
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

TEST(TaskThreadTest, RefusesMoreThanMayWait) {
  Mutex gate;
  gate.Lock();
  int ran = 0;
  {
    TaskThread thread(2);
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
    TaskThread thread(2);
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
    while ((waiting = thread.Submit(task(2))) == 0) std::this_thread::yield();
    EXPECT_TRUE(thread.Withdraw(waiting));
    EXPECT_FALSE(thread.Withdraw(waiting));  // Once.
    EXPECT_NE(thread.Submit(task(3)), 0u);
    gate.Unlock();
  }
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 3}));
}

TEST(CatchAllTest, TurnsExceptionsIntoStatuses) {
  EXPECT_TRUE(CatchAll([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::runtime_error("secret"); }).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw 5; }).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace normd

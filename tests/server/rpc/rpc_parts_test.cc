// ActiveCalls, DeadlineOf, CatchAll, ForClient and Readiness.

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/retry_after.h"
#include "server/accept/active_calls.h"
#include "server/accept/client_status.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/readiness.h"
#include "tests/support/counting_metrics.h"
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

// In every state: with a model or none, started, with room, stopped, and where none is needed.
TEST(ReadinessTest, TellsWhyNotExactlyWhileTheMetricSaysNotReady) {
  for (int state = 0; state < 32; ++state) {
    const auto is = [state](int bit) { return (state & bit) != 0; };
    CountingMetrics metrics;
    Readiness readiness(metrics, is(16) ? WithoutModels::kReady : WithoutModels::kNotReady);
    if (is(1)) readiness.SetModel("m", true);
    if (is(2)) readiness.Start();
    readiness.SetRoom(!is(4));
    if (is(8)) readiness.Stop("of the test");
    EXPECT_EQ(readiness.WhyNot().empty(), metrics.ready) << state << ": " << readiness.WhyNot();
    readiness.Stop("of the test");
    readiness.Stop();
    EXPECT_EQ(readiness.WhyNot(), "of the test") << "the first reason stays";
  }
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

TEST(CatchAllTest, TurnsExceptionsIntoStatuses) {
  EXPECT_TRUE(CatchAll([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::runtime_error("secret"); }).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw 5; }).code(), absl::StatusCode::kInternal);
}

TEST(ForClientTest, KeepsWhenToRetryAndNotWhatFailed) {
  absl::Status status = absl::UnknownError("deadbeef");
  EXPECT_EQ(RetryAfterOf(ForClient(status, "")), std::nullopt);
  SetRetryAfter(std::chrono::milliseconds(3), status);
  const absl::Status told = ForClient(status, "");
  EXPECT_EQ(RetryAfterOf(told), std::chrono::milliseconds(3));
  EXPECT_EQ(told.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(told.message()).find("deadbeef"), std::string::npos);
}

}  // namespace
}  // namespace normd

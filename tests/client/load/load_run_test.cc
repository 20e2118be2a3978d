#include "client/load/load_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/load/early_stop.h"
#include "tests/client/load/simulation.h"

namespace normd::load {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Workload OneItem() { return Workload::Create(ParseMix("m:1x4").value(), 1).value(); }

LoadOptions Closed(int concurrency, Duration duration) {
  LoadOptions options;
  options.concurrency = concurrency;
  options.stop.duration = duration;
  return options;
}

LoadOptions Open(double rate, Duration duration) {
  LoadOptions options;
  options.arrivals = ConstantArrivals(rate);
  options.stop.duration = duration;
  return options;
}

class LoadRunTest : public ::testing::Test {
 protected:
  LoadResult Run(LoadOptions options) {
    LoadRun run(std::move(options), workload_, server_, simulation_);
    run.Run();
    return run.Snapshot();
  }

  const Workload workload_ = OneItem();
  Simulation simulation_;
  SimulatedServer server_{simulation_, milliseconds(1)};
  const TimePoint start_ = simulation_.Now();
};

TEST_F(LoadRunTest, ClosedLoopKeepsItsConcurrency) {
  const LoadResult result = Run(Closed(4, seconds(10)));
  EXPECT_EQ(server_.max_outstanding(), 4);
  // One server of 1 ms each; the last four are sent before the end and answered after it.
  EXPECT_NEAR(static_cast<double>(result.measured.ok()), 10000, 4);
  EXPECT_EQ(result.measured.response_time.Percentile(50), milliseconds(4));
  EXPECT_EQ(result.reason, StopReason::kDuration);
  EXPECT_EQ(result.inflight, 0);
}

TEST_F(LoadRunTest, OpenLoopSendsAtItsRateWhateverTheServerDoes) {
  server_.Stall(start_ + seconds(2), start_ + seconds(3));
  const LoadResult result = Run(Open(100, seconds(10)));
  ASSERT_EQ(server_.sent().size(), 1000u);
  for (std::size_t i = 0; i < server_.sent().size(); ++i) {
    EXPECT_EQ(server_.sent()[i].time, start_ + milliseconds(10) * i);
  }
  EXPECT_EQ(result.measured.send_lag.max(), Duration{0});
  EXPECT_EQ(result.measured.ok(), 1000);
}

// A stall of 1 s in every 10 s. This is why response time counts from the intended send.
TEST_F(LoadRunTest, AStallShowsInTheOpenLoop) {
  for (int i = 0; i < 3; ++i) {
    server_.Stall(start_ + seconds(10 * i + 5), start_ + seconds(10 * i + 6));
  }
  const LoadResult result = Run(Open(100, seconds(30)));
  EXPECT_GT(result.measured.response_time.Percentile(99.9), milliseconds(900));
  EXPECT_GT(result.measured.response_time.Percentile(95), milliseconds(400));
}

TEST_F(LoadRunTest, TheSameStallHidesInTheClosedLoop) {
  for (int i = 0; i < 3; ++i) {
    server_.Stall(start_ + seconds(10 * i + 5), start_ + seconds(10 * i + 6));
  }
  const LoadResult result = Run(Closed(1, seconds(30)));
  EXPECT_LT(result.measured.response_time.Percentile(99.9), milliseconds(2));
  EXPECT_GT(result.measured.response_time.max(), seconds(1));
}

TEST_F(LoadRunTest, WaitingForRoomInFlightIsPartOfTheResponseTime) {
  server_.Stall(start_ + seconds(1), start_ + seconds(2));
  LoadOptions options = Open(100, seconds(4));
  options.max_inflight = 1;
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(server_.max_outstanding(), 1);
  // Only one request is in the server during the stall, so the actual sends hide it.
  EXPECT_LT(result.measured.service_time.Percentile(99), milliseconds(2));
  EXPECT_GT(result.measured.response_time.Percentile(90), milliseconds(500));
  EXPECT_GT(result.measured.send_lag.Percentile(90), milliseconds(500));
  EXPECT_EQ(result.measured.ok(), 400);
}

TEST_F(LoadRunTest, ALateSendDoesNotMoveTheScheduleAfterIt) {
  simulation_.OversleepAt(start_ + seconds(1), milliseconds(55));
  const LoadResult result = Run(Open(100, seconds(2)));
  ASSERT_EQ(server_.sent().size(), 200u);
  // 1.00 s to 1.05 s leave together at 1.055 s; 1.06 s is on time again.
  EXPECT_EQ(server_.sent()[100].time, start_ + milliseconds(1055));
  EXPECT_EQ(server_.sent()[105].time, start_ + milliseconds(1055));
  EXPECT_EQ(server_.sent()[106].time, start_ + milliseconds(1060));
  EXPECT_EQ(result.measured.send_lag.max(), milliseconds(55));
}

TEST_F(LoadRunTest, ABacklogAtTheEndIsCountedAndNotWorkedOff) {
  LoadOptions options = Open(2000, seconds(1));  // Twice what the server can do.
  options.max_inflight = 10;
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.ok() + result.unsent, 2000);
  EXPECT_GT(result.unsent, 800);
  EXPECT_LT(simulation_.Now(), start_ + milliseconds(1200));
}

TEST_F(LoadRunTest, WarmUpIsNotMeasured) {
  server_.SetServiceTimeBefore(start_ + seconds(1), milliseconds(50));
  LoadOptions options = Open(10, seconds(5));
  options.stop.warmup = seconds(2);
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.warmup_requests, 20);
  EXPECT_EQ(result.measured.requests(), 50);
  EXPECT_EQ(result.measured.response_time.max(), milliseconds(1));
}

TEST_F(LoadRunTest, ClosedLoopMeasuresExactlyTheRequestsWanted) {
  LoadOptions options = Closed(3, Duration::max());
  options.stop.requests = 100;
  options.stop.warmup = milliseconds(5);
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.requests(), 100);
  EXPECT_EQ(result.reason, StopReason::kRequests);
  EXPECT_GT(result.measured.warmup_requests, 0);
}

TEST_F(LoadRunTest, OpenLoopMeasuresExactlyTheRequestsWanted) {
  LoadOptions options = Open(1000, Duration::max());
  options.stop.requests = 100;
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.requests(), 100);
  EXPECT_EQ(result.elapsed, milliseconds(100));
  // It does not wait for the time of a request that will not be sent: the response ends it.
  EXPECT_EQ(simulation_.Now(), start_ + milliseconds(100));
}

TEST_F(LoadRunTest, EndsWhenTheArrivalsEnd) {
  class Two final : public Arrivals {
   public:
    std::optional<Duration> Next() override {
      if (next_ == 2) return std::nullopt;
      return milliseconds(next_++);
    }

   private:
    int next_ = 0;
  };
  LoadOptions options;
  options.arrivals = std::make_unique<Two>();
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.requests(), 2);
  EXPECT_EQ(result.reason, StopReason::kArrivalsEnded);
}

TEST_F(LoadRunTest, InterruptStopsSendingAndFinishesWhatIsOut) {
  LoadRun run(Closed(4, seconds(10)), workload_, server_, simulation_);
  simulation_.At(start_ + seconds(1), [&] { run.Stop(StopReason::kInterrupted); });
  run.Run();
  const LoadResult result = run.Snapshot();
  EXPECT_EQ(result.reason, StopReason::kInterrupted);
  EXPECT_EQ(result.measured.requests(), static_cast<std::int64_t>(server_.sent().size()));
  EXPECT_NEAR(static_cast<double>(result.measured.requests()), 1000, 4);
}

TEST_F(LoadRunTest, TheReasonToStopIsKept) {
  LoadRun run(Open(100, seconds(10)), workload_, server_, simulation_);
  simulation_.At(start_ + seconds(1), [&] { run.Stop(StopReason::kStable); });
  run.Run();
  EXPECT_EQ(run.Snapshot().reason, StopReason::kStable);
}

TEST_F(LoadRunTest, InterruptBeforeTheRunSendsNothing) {
  LoadRun run(Open(100, seconds(10)), workload_, server_, simulation_);
  run.Stop(StopReason::kInterrupted);
  run.Run();
  EXPECT_TRUE(server_.sent().empty());
  EXPECT_EQ(run.Snapshot().reason, StopReason::kInterrupted);
}

TEST_F(LoadRunTest, GivesUpOnAServerThatHasGone) {
  server_.FailWith(absl::StatusCode::kUnavailable);
  LoadOptions options = Closed(2, seconds(1000));
  options.stop.unavailable_in_a_row = 10;
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.reason, StopReason::kServerGone);
  EXPECT_LE(result.measured.errors(), 11);
}

TEST_F(LoadRunTest, VerifiesEachNthRequestWhateverItsWorker) {
  const auto marked = [](const std::vector<SimulatedServer::Sent>& all) {
    return std::count_if(all.begin(), all.end(),
                         [](const auto& one) { return one.request.verify; });
  };
  LoadOptions closed = Closed(3, Duration::max());
  closed.stop.requests = 100;
  closed.verify_every = 4;
  Run(std::move(closed));
  EXPECT_EQ(marked(server_.sent()), 25);
  LoadOptions open = Open(100, seconds(4));
  open.verify_every = 100;
  Run(std::move(open));
  EXPECT_EQ(marked(server_.sent()), 25 + 4);
}

TEST_F(LoadRunTest, CancelledCallsAreAShareAndCountApart) {
  LoadOptions options = Open(100, seconds(100));
  options.cancel_share = 0.2;
  options.cancel_after = std::chrono::microseconds(500);  // Half of the service time.
  const LoadResult result = Run(std::move(options));
  // Five standard deviations of a share of 0.2 in 10000.
  EXPECT_NEAR(static_cast<double>(result.measured.cancelled), 2000, 200);
  EXPECT_EQ(result.measured.requests() + result.measured.cancelled, 10000);
  EXPECT_EQ(result.measured.errors(), 0);
  EXPECT_EQ(result.measured.response_time.min(), milliseconds(1));
}

TEST_F(LoadRunTest, ACancellationAfterTheResponseChangesNothing) {
  LoadOptions options = Open(100, seconds(10));
  options.cancel_share = 1;
  options.cancel_after = milliseconds(2);
  const LoadResult result = Run(std::move(options));
  EXPECT_EQ(result.measured.ok(), 1000);
  EXPECT_EQ(result.measured.cancelled, 0);
}

TEST_F(LoadRunTest, CallersKeepTheirStreams) {
  Run(Closed(3, milliseconds(30)));
  std::vector<int> calls(3);
  for (const auto& sent : server_.sent()) {
    ASSERT_LT(sent.request.caller, 3u);
    ++calls[sent.request.caller];
  }
  for (const int n : calls) EXPECT_NEAR(n, 11, 1);
}

TEST_F(LoadRunTest, SnapshotTellsOfARunUnderWay) {
  LoadRun run(Open(1000, seconds(2)), workload_, server_, simulation_);
  LoadResult middle;
  simulation_.At(start_ + seconds(1), [&] { middle = run.Snapshot(); });
  EXPECT_EQ(run.Snapshot().measured.requests(), 0);
  run.Run();
  EXPECT_NEAR(static_cast<double>(middle.measured.requests()), 1000, 2);
  EXPECT_EQ(middle.reason, StopReason::kNone);
}

// A run that goes on for a second, with so many responses after `time` each, between two looks.
class Load {
 public:
  const LoadResult& Second(int answers, Duration time) {
    result_.elapsed += seconds(1);
    result_.measured.codes[0] += answers;
    for (int i = 0; i < answers; ++i) result_.measured.response_time.Record(time);
    return result_;
  }
  const LoadResult& Errors(int errors) {
    result_.measured.codes[14] += errors;
    return result_;
  }

 private:
  LoadResult result_;
};

EarlyStopOptions WithinTenPercent() {
  EarlyStopOptions options;
  options.stable_band = 0.1;
  options.window = seconds(1);
  options.least_responses_per_window = 10;
  return options;
}

TEST(EarlyStopTest, StopsWhenThreeWindowsInARowAgree) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  EXPECT_EQ(stop.Look(run.Second(10, milliseconds(50))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1000))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1090))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(10, microseconds(1050))), StopReason::kStable);
}

TEST(EarlyStopTest, ADriftIsNotStableThoughEachStepIsSmall) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  for (int i = 0; i < 20; ++i) {
    // Each is 8 % above the one before, and so 16 % above the one before that.
    EXPECT_EQ(stop.Look(run.Second(10, microseconds(static_cast<int>(1000 * std::pow(1.08, i))))),
              StopReason::kNone);
  }
}

TEST(EarlyStopTest, AWindowWaitsForEnoughResponses) {
  EarlyStop stop(WithinTenPercent());
  Load run;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(stop.Look(run.Second(5, milliseconds(1))), StopReason::kNone) << i;
  }
  EXPECT_EQ(stop.Look(run.Second(5, milliseconds(1))), StopReason::kStable);
}

TEST(EarlyStopTest, StopsAtTheErrorShareOnceThereAreEnough) {
  EarlyStopOptions options;
  options.error_share = 0.5;
  options.least_requests = 20;
  EarlyStop stop(options);
  Load run;
  EXPECT_EQ(stop.Look(run.Errors(19)), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(19, milliseconds(1))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Errors(1)), StopReason::kErrorShare);
}

TEST(EarlyStopTest, NeverStopsByDefault) {
  EarlyStop stop({});
  Load run;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(stop.Look(run.Second(1000, milliseconds(1))), StopReason::kNone);
    EXPECT_EQ(stop.Look(run.Errors(10000)), StopReason::kNone);
  }
}

TEST(EarlyStopTest, StopsWhenMoreResponsesAreLateThanTheObjectiveAllows) {
  EarlyStopOptions options;
  options.most_late = 2;
  options.limit = milliseconds(5);
  EarlyStop stop(options);
  Load run;
  EXPECT_EQ(stop.Look(run.Second(1000, milliseconds(4))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(2, milliseconds(6))), StopReason::kNone);
  EXPECT_EQ(stop.Look(run.Second(1, milliseconds(6))), StopReason::kObjectiveMissed);
}

}  // namespace
}  // namespace normd::load

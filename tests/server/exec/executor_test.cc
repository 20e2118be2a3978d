#include "server/exec/executor.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/test_lanes.h"

namespace normd {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// Completes each batch at once.
class InstantLane final : public Lane {
 public:
  explicit InstantLane(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    CompleteAll(std::move(batch), absl::OkStatus(), name_);
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::string device_ = "instant";
};

// Takes every batch for a large one, or none, and passes the gate. Counts how many are at work at
// once, and the most there ever were.
class CountedLane final : public Lane {
 public:
  struct Counts {
    std::atomic<int> now{0};
    std::atomic<int> most{0};
  };
  CountedLane(std::string name, bool large, Gate& gate, Counts& counts)
      : name_(std::move(name)), large_(large), gate_(gate), counts_(counts) {}
  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    const int now = ++counts_.now;
    for (int most = counts_.most; now > most && !counts_.most.compare_exchange_weak(most, now);) {
    }
    if (large_) LargeBatch();
    gate_.Pass();
    --counts_.now;
    CompleteAll(std::move(batch), absl::OkStatus(), name_);
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::string device_ = "counted";
  const bool large_;
  Gate& gate_;
  Counts& counts_;
};

std::vector<std::unique_ptr<Lane>> CountedLanes(int count, bool large, Gate& gate,
                                                CountedLane::Counts& counts) {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < count; ++i) {
    lanes.push_back(std::make_unique<CountedLane>(std::to_string(i), large, gate, counts));
  }
  return lanes;
}

std::vector<std::unique_ptr<Lane>> Lanes(std::unique_ptr<Lane> a,
                                         std::unique_ptr<Lane> b = nullptr) {
  std::vector<std::unique_ptr<Lane>> lanes;
  lanes.push_back(std::move(a));
  if (b != nullptr) lanes.push_back(std::move(b));
  return lanes;
}

std::unique_ptr<Lane> Faulty(std::unique_ptr<Lane> inner, int fail_at) {
  return std::make_unique<FaultyLane>(std::move(inner), fail_at, absl::InternalError("sticky"));
}

class ExecutorTest : public testing::Test {
 protected:
  static BatchQueueOptions OneRowABatch() {
    BatchQueueOptions options;
    options.limits.max_rows = 1;
    return options;
  }
  std::unique_ptr<RequestProbe> Push(TimePoint deadline = kNever) {
    auto probe = std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1});
    probe->request()->deadline = deadline;
    EXPECT_TRUE(queue_.Push(probe->request()).ok());
    return probe;
  }
  // What main does when no lane is left.
  auto Shut() {
    return [this](const absl::Status& error) {
      ++last_lane_calls_;
      last_error_ = error;
      queue_.Close();
      queue_.Abort(absl::UnavailableError("no working lane"));
    };
  }
  // The number of `lanes` lanes that had a batch at once while all that may were held up;
  // `expected` are awaited. Everything pushed is answered.
  int MostLanesAtOnce(int lanes, bool large, int turns, int expected) {
    Gate gate;
    CountedLane::Counts counts;
    Executor executor(CountedLanes(lanes, large, gate, counts), queue_, {}, turns);
    executor.Start(Shut());
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (int i = 0; i < 50; ++i) probes.push_back(Push());
    gate.WaitForStalled(expected);
    gate.Open();
    queue_.Close();
    executor.Join();
    for (const auto& probe : probes) EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
    return counts.most;
  }

  SteadyClock clock_;
  ModelMetrics metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(metrics_);
  BatchQueue queue_{OneRowABatch(), clock_};
  std::atomic<int> last_lane_calls_{0};
  absl::Status last_error_;
};

TEST_F(ExecutorTest, FinishesAllThatWasAcceptedBeforeClose) {
  Gate gate;
  Executor executor(Lanes(std::make_unique<PausingLane>(std::make_unique<InstantLane>("a"), gate)),
                    queue_);
  executor.Start(Shut());
  std::vector<std::unique_ptr<RequestProbe>> probes;
  for (int i = 0; i < 20; ++i) probes.push_back(Push());
  gate.WaitForStalled(1);
  queue_.Close();
  EXPECT_FALSE(probes.back()->done());
  gate.Open();
  executor.Join();
  for (const auto& probe : probes) EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
  EXPECT_EQ(last_lane_calls_, 0);
  EXPECT_EQ(executor.working_lanes(), 1);
}

// Finds no memory for its first batch.
class StarvedLane final : public Lane {
 public:
  const std::string& name() const override { return name_; }
  const std::string& device() const override { return name_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    if (std::exchange(is_first_, false)) throw std::bad_alloc();
    CompleteAll(std::move(batch), absl::OkStatus(), name_);
    return absl::OkStatus();
  }

 private:
  const std::string name_ = "starved";
  bool is_first_ = true;
};

TEST_F(ExecutorTest, ABatchWithoutMemoryEndsAloneAndTheLaneGoesOn) {
  Executor executor(Lanes(std::make_unique<StarvedLane>()), queue_);
  const auto first = Push();
  const auto second = Push();
  executor.Start(Shut());
  queue_.Close();
  executor.Join();
  EXPECT_EQ(first->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(second->code(), absl::StatusCode::kOk);
  EXPECT_EQ(executor.working_lanes(), 1);
}

TEST_F(ExecutorTest, NamesLanesAndTheirThreads) {
  Executor executor(Lanes(std::make_unique<InstantLane>("cpu:0")), queue_);
  EXPECT_THAT(executor.lane_names(), ElementsAre("cpu:0"));
  executor.Start(Shut());
  auto probe = std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1});
  std::array<char, 16> name{};
  probe->OnDone([&name] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  EXPECT_TRUE(queue_.Push(probe->request()).ok());
  queue_.Close();
  executor.Join();
  EXPECT_STREQ(name.data(), "lane cpu:0");
}

TEST_F(ExecutorTest, BothLanesWork) {
  Gate gate;
  Executor executor(Lanes(std::make_unique<PausingLane>(std::make_unique<InstantLane>("a"), gate),
                          std::make_unique<PausingLane>(std::make_unique<InstantLane>("b"), gate)),
                    queue_);
  executor.Start(Shut());
  const auto first = Push();
  const auto second = Push();
  gate.WaitForStalled(2);
  gate.Open();
  queue_.Close();
  executor.Join();
  EXPECT_THAT(
      (std::vector<std::string>{first->completion().batch.lane, second->completion().batch.lane}),
      UnorderedElementsAre("a", "b"));
}

TEST_F(ExecutorTest, ExpiresWhatWaitsWhileItsLanesStall) {
  Gate gate;
  Executor executor(Lanes(std::make_unique<PausingLane>(std::make_unique<InstantLane>("a"), gate)),
                    queue_);
  executor.Start(Shut());
  const auto stalled = Push();
  gate.WaitForStalled(1);
  const auto waiting = Push(clock_.Now() + std::chrono::milliseconds(1));
  waiting->Wait();
  EXPECT_EQ(waiting->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(stalled->done());
  gate.Open();
  queue_.Close();
  executor.Join();
}

TEST_F(ExecutorTest, OneLaneRetiresAndTheOtherGoesOn) {
  Gate gate;  // Both lanes get a batch before one of them fails.
  Executor executor(
      Lanes(std::make_unique<PausingLane>(Faulty(std::make_unique<InstantLane>("bad"), 0), gate),
            std::make_unique<PausingLane>(std::make_unique<InstantLane>("good"), gate)),
      queue_);
  executor.Start(Shut());
  std::vector<std::unique_ptr<RequestProbe>> probes;
  probes.push_back(Push());
  probes.push_back(Push());
  gate.WaitForStalled(2);
  gate.Open();
  for (const auto& probe : probes) probe->Wait();
  EXPECT_THAT(Codes(probes),
              UnorderedElementsAre(absl::StatusCode::kInternal, absl::StatusCode::kOk));
  for (int i = 0; i < 20; ++i) {
    const auto probe = Push();
    probe->Wait();
    EXPECT_EQ(probe->completion().batch.lane, "good");
  }
  queue_.Close();
  executor.Join();
  EXPECT_EQ(executor.working_lanes(), 1);
  EXPECT_EQ(last_lane_calls_, 0);
}

TEST_F(ExecutorTest, TheLastLaneToRetireSaysSoOnce) {
  Gate gate;
  Executor executor(
      Lanes(std::make_unique<PausingLane>(Faulty(std::make_unique<InstantLane>("a"), 0), gate),
            std::make_unique<PausingLane>(Faulty(std::make_unique<InstantLane>("b"), 0), gate)),
      queue_);
  executor.Start(Shut());
  std::vector<std::unique_ptr<RequestProbe>> probes;
  for (int i = 0; i < 5; ++i) probes.push_back(Push());
  gate.WaitForStalled(2);
  gate.Open();
  executor.Join();
  EXPECT_EQ(last_lane_calls_, 1);
  EXPECT_EQ(last_error_, absl::InternalError("sticky"));
  EXPECT_EQ(executor.working_lanes(), 0);
  EXPECT_THAT(Codes(probes),
              UnorderedElementsAre(absl::StatusCode::kInternal, absl::StatusCode::kInternal,
                                   absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable,
                                   absl::StatusCode::kUnavailable));
}

TEST_F(ExecutorTest, FlushesALaneThatCompletesLater) {
  Executor executor(Lanes(std::make_unique<PuppetLane>("later")), queue_);
  executor.Start(Shut());
  const auto probe = Push();
  queue_.Close();
  executor.Join();
  EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
}

TEST_F(ExecutorTest, FlushesALaneThatRetiresWithWorkInFlight) {
  Executor executor(Lanes(Faulty(std::make_unique<PuppetLane>("later"), 1)), queue_);
  executor.Start(Shut());
  const auto in_flight = Push();
  const auto failed = Push();
  executor.Join();
  EXPECT_EQ(in_flight->code(), absl::StatusCode::kOk);
  EXPECT_EQ(failed->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(last_lane_calls_, 1);
}

TEST_F(ExecutorTest, NoMoreLanesComputeSmallBatchesThanMay) {
  EXPECT_EQ(MostLanesAtOnce(/*lanes=*/5, /*large=*/false, /*turns=*/2, /*expected=*/2), 2);
}

TEST_F(ExecutorTest, ALaneWithALargeBatchLetsAnotherTake) {
  EXPECT_EQ(MostLanesAtOnce(/*lanes=*/3, /*large=*/true, /*turns=*/1, /*expected=*/3), 3);
}

TEST_F(ExecutorTest, ALaneThatRetiresLeavesItsTurnToAnother) {
  Executor executor(Lanes(Faulty(std::make_unique<InstantLane>("a"), 0),
                          Faulty(std::make_unique<InstantLane>("b"), 0)),
                    queue_, {}, 1);
  executor.Start(Shut());
  const auto first = Push();
  const auto second = Push();
  executor.Join();
  EXPECT_EQ(first->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(second->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(executor.working_lanes(), 0);
}

TEST_F(ExecutorTest, JoinWithoutWorkReturns) {
  Executor executor(Lanes(std::make_unique<InstantLane>("a")), queue_);
  executor.Start(Shut());
  queue_.Close();
  executor.Join();
  executor.Join();
}

TEST_F(ExecutorTest, NeedsNoStart) {
  const Executor executor(Lanes(std::make_unique<InstantLane>("a")), queue_);
  queue_.Close();
}

}  // namespace
}  // namespace normd

// The queue with real threads and the real clock. A lost wake-up shows as a test that never ends.

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/test_lanes.h"

namespace normd {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Threads that take batches and complete them, and the reaper. Ends with Finish.
class Takers {
 public:
  Takers(BatchQueue& queue, int takers) : queue_(queue) {
    for (int i = 0; i < takers; ++i) {
      threads_.emplace_back([this] {
        while (std::unique_ptr<Batch> batch = queue_.Take()) {
          ++batches_;
          CompleteAll(std::move(batch), absl::OkStatus(), "thread");
        }
      });
    }
    threads_.emplace_back([this] { queue_.Reap(); });
  }
  ~Takers() { Finish(); }
  void Finish() {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int batches() const { return batches_; }

 private:
  BatchQueue& queue_;
  std::atomic<int> batches_{0};
  std::vector<std::thread> threads_;
};

class BatchQueueThreadsTest : public testing::Test {
 protected:
  std::unique_ptr<RequestProbe> Push(BatchQueue& queue, const std::shared_ptr<const Model>& model,
                                     TimePoint deadline = kNever) {
    auto probe = std::make_unique<RequestProbe>(model, std::vector<std::int64_t>{1, 1, 1});
    probe->request()->deadline = deadline;
    EXPECT_TRUE(queue.Push(probe->request()).ok());
    return probe;
  }
  TimePoint In(Duration duration) const { return clock_.Now() + duration; }

  SteadyClock clock_;
  ModelMetrics metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(metrics_);
};

TEST_F(BatchQueueThreadsTest, EachPushWakesATaker) {
  BatchQueue queue({}, clock_);
  Takers takers(queue, 3);
  for (int i = 0; i < 200; ++i) {
    const auto probe = Push(queue, model_);
    probe->Wait();
    EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
  }
}

// Were it not called, it would spin for an hour.
TEST_F(BatchQueueThreadsTest, ATakerThatLooksOutIsCalledByAPushADelayAndTheEnd) {
  for (const Duration delay : {Duration(0), Duration(microseconds(100))}) {
    for (const int count : {1, 3}) {
      BatchQueueOptions options;
      options.spin_wait = hours(1);
      options.limits.max_queue_delay = delay;
      BatchQueue queue(options, clock_);
      Takers takers(queue, count);
      for (int i = 0; i < 100; ++i) {
        const auto probe = Push(queue, model_);
        probe->Wait();
        EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
      }
    }
  }
}

TEST_F(BatchQueueThreadsTest, ATakerThatHasLookedOutSleepsAndIsWoken) {
  BatchQueueOptions options;
  options.spin_wait = microseconds(20);
  BatchQueue queue(options, clock_);
  Takers takers(queue, 2);
  for (int i = 0; i < 200; ++i) {
    const auto probe = Push(queue, model_);
    probe->Wait();
    // About as long as it spins, so that some pushes meet it awake, asleep and in between.
    const TimePoint until = In(microseconds(i % 40));
    while (clock_.Now() < until) std::this_thread::yield();
  }
}

// A taker reads the clock each time it wakes, so readings count wake-ups.
class CountingClock final : public Clock {
 public:
  TimePoint Now() const override {
    ++readings_;
    return steady_.Now();
  }
  int readings() const { return readings_; }

 private:
  SteadyClock steady_;
  mutable std::atomic<int> readings_{0};
};

TEST_F(BatchQueueThreadsTest, APushWakesNoMoreTakersThanItNeeds) {
  constexpr int kTakers = 16;
  constexpr int kPushes = 200;
  for (const Duration delay : {Duration(0), Duration(microseconds(200))}) {
    const CountingClock clock;
    BatchQueueOptions options;
    options.limits.max_queue_delay = delay;
    BatchQueue queue(options, clock);
    Takers takers(queue, kTakers);
    for (int i = 0; i < kPushes; ++i) Push(queue, model_)->Wait();
    // One taker wakes, at most twice more for a delay, and looks again when it comes back. Were all
    // of them woken each time, it would be more than kTakers readings a push.
    EXPECT_LT(clock.readings(), kPushes * kTakers / 2);
  }
}

TEST_F(BatchQueueThreadsTest, ManyBatchesAtOnceReachEveryTaker) {
  BatchQueueOptions options;
  options.limits.max_rows = 1;
  BatchQueue queue(options, clock_);
  constexpr int kTakers = 4;
  std::vector<std::unique_ptr<Batch>> held(kTakers);
  std::vector<std::thread> threads;
  // No taker completes its batch before all have one.
  Gate all_have_one;
  for (int i = 0; i < kTakers; ++i) {
    threads.emplace_back([&, i] {
      held[static_cast<std::size_t>(i)] = queue.Take();
      all_have_one.Pass();
      CompleteAll(std::move(held[static_cast<std::size_t>(i)]), absl::OkStatus(), "thread");
    });
  }
  std::vector<std::unique_ptr<RequestProbe>> probes;
  for (int i = 0; i < kTakers; ++i) probes.push_back(Push(queue, model_));
  all_have_one.WaitForStalled(kTakers);
  all_have_one.Open();
  for (const auto& probe : probes) probe->Wait();
  for (std::thread& thread : threads) thread.join();
  queue.Close();
}

// Takers that never wait first, and takers that do.
TEST_F(BatchQueueThreadsTest, CountsTheTimeInWhichEveryTakerIsAtWork) {
  FakeClock clock;
  BatchQueueOptions options;
  options.limits.max_rows = 1;
  BatchQueue queue(options, clock);
  const auto take = [&queue] {
    return std::async(std::launch::async, [&] { return queue.Take(); });
  };
  const auto complete = [](std::unique_ptr<Batch> batch) {
    CompleteAll(std::move(batch), absl::OkStatus(), "thread");
  };
  // While somebody waits, nothing is counted.
  const auto until_one_waits = [&] {
    for (Duration before = queue.TimeWithoutTaker();; before = queue.TimeWithoutTaker()) {
      clock.Advance(milliseconds(1));
      if (queue.TimeWithoutTaker() == before) return before;
      std::this_thread::yield();
    }
  };
  clock.Advance(hours(1));
  EXPECT_EQ(queue.TimeWithoutTaker(), Duration(0)) << "before the first one";
  const auto first = Push(queue, model_);
  std::unique_ptr<Batch> batch = queue.Take();
  clock.Advance(milliseconds(5));
  EXPECT_EQ(queue.TimeWithoutTaker(), milliseconds(5)) << "nothing need wait";
  complete(std::move(batch));

  std::array<std::future<std::unique_ptr<Batch>>, 2> takers = {take(), take()};
  EXPECT_GE(until_one_waits(), milliseconds(5));
  const auto second = Push(queue, model_);
  const auto has_one = [](auto& taker) {
    return taker.wait_for(milliseconds(1)) == std::future_status::ready;
  };
  while (!has_one(takers[0]) && !has_one(takers[1])) continue;
  std::future<std::unique_ptr<Batch>>& other = has_one(takers[0]) ? takers[1] : takers[0];
  const Duration counted = until_one_waits();
  clock.Advance(milliseconds(7));
  EXPECT_EQ(queue.TimeWithoutTaker(), counted) << "one of two still waits";
  const auto third = Push(queue, model_);
  other.wait();
  clock.Advance(milliseconds(3));
  EXPECT_EQ(queue.TimeWithoutTaker(), counted + milliseconds(3)) << "both are at work";
  for (auto& taker : takers) complete(taker.get());
  queue.Close();
}

TEST_F(BatchQueueThreadsTest, TakesWhenTheQueueDelayEnds) {
  BatchQueueOptions options;
  options.limits.max_queue_delay = milliseconds(2);
  BatchQueue queue(options, clock_);
  Takers takers(queue, 3);
  for (int i = 0; i < 20; ++i) {
    const auto probe = Push(queue, model_);
    probe->Wait();
    EXPECT_GE(probe->completion().stages[Stage::kQueue], milliseconds(2));
  }
}

TEST_F(BatchQueueThreadsTest, AShorterQueueDelayWakesTheTakerThatWaitsForALongerOne) {
  BatchQueueOptions options;
  options.limits.max_queue_delay = hours(1);
  BatchQueue queue(options, clock_);
  const auto quick = MakeRowModel(metrics_, "max_queue_delay_us: 500", "quick");
  for (const int count : {1, 3}) {
    BatchQueue one(options, clock_);
    Takers takers(one, count);
    const auto slow = Push(one, model_);
    for (int i = 0; i < 20; ++i) Push(one, quick)->Wait();
    EXPECT_FALSE(slow->done());
    takers.Finish();
    EXPECT_EQ(slow->code(), absl::StatusCode::kOk);
  }
  queue.Close();
}

TEST_F(BatchQueueThreadsTest, AFullBatchWakesTheTakerThatWaitsForTheDelay) {
  BatchQueueOptions options;
  options.limits.max_queue_delay = hours(1);
  options.limits.max_rows = 2;
  for (const int count : {1, 3}) {
    BatchQueue queue(options, clock_);
    Takers takers(queue, count);
    for (int i = 0; i < 50; ++i) {
      const auto a = Push(queue, model_);
      const auto b = Push(queue, model_);
      a->Wait();
      b->Wait();
      EXPECT_EQ(a->completion().batch.requests, 2);
    }
  }
}

TEST_F(BatchQueueThreadsTest, ExpiresWhatNobodyTakes) {
  BatchQueue queue({}, clock_);
  Takers reaper(queue, 0);
  const auto far = Push(queue, model_, In(hours(1)));
  for (int i = 0; i < 20; ++i) {
    const auto near = Push(queue, model_, In(microseconds(300)));
    near->Wait();
    EXPECT_EQ(near->code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_FALSE(far->done());
  queue.Abort(absl::UnavailableError("end"));
  EXPECT_EQ(far->code(), absl::StatusCode::kUnavailable);
}

TEST_F(BatchQueueThreadsTest, CloseEndsEveryTakerAndTheReaper) {
  for (int i = 0; i < 50; ++i) {
    BatchQueue queue({}, clock_);
    Takers takers(queue, 4);
    const auto probe = Push(queue, model_, In(hours(1)));
    takers.Finish();
    EXPECT_EQ(probe->code(), absl::StatusCode::kOk);
  }
}

// Pushes requests that may run inline until a taker gets one, and so for ever if none does.
class InlineHandover : public BatchQueueThreadsTest {
 protected:
  class Runner final : public BatchRunner {
   public:
    absl::Status Execute(std::unique_ptr<Batch> batch) override {
      CompleteAll(std::move(batch), absl::OkStatus(), "inline");
      return absl::OkStatus();
    }
  };

  static BatchQueueOptions Options(Duration spin_wait) {
    BatchQueueOptions options;
    options.spin_wait = spin_wait;
    options.max_inline_bytes = 8;
    return options;
  }

  void PushUntilATakerGetsOne(BatchQueue& queue) {
    for (std::string lane; lane != "thread";) {
      auto probe = std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1});
      probe->request()->may_run_inline = true;
      ASSERT_TRUE(queue.Push(probe->request()).ok());
      probe->Wait();
      lane = probe->completion().batch.lane;
    }
  }

  Runner runner_;
};

TEST_F(InlineHandover, ATakerThatLooksOutGetsWhatWouldRunInline) {
  BatchQueue queue(Options(hours(1)), clock_);
  queue.RunInlineOn({&runner_});
  Takers takers(queue, 1);
  for (int i = 0; i < 20; ++i) PushUntilATakerGetsOne(queue);
}

TEST_F(InlineHandover, RequestsThatRunInlineSoonAfterEachOtherWakeATakerToSpin) {
  const Duration spin_wait = microseconds(100);
  BatchQueue queue(Options(spin_wait), clock_);
  queue.RunInlineOn({&runner_});
  Takers takers(queue, 2);
  for (int i = 0; i < 20; ++i) {
    PushUntilATakerGetsOne(queue);
    const TimePoint asleep = In(3 * spin_wait);  // As far as the scheduler lets them be.
    while (clock_.Now() < asleep) std::this_thread::yield();
  }
}

// What one random run saw.
struct Tally {
  std::atomic<int> accepted{0};
  std::atomic<int> refused{0};
  std::array<std::atomic<int>, 17> ended{};
};

struct StressOptions {
  int producers = 3;
  int takers = 3;
  int requests_per_producer = 4000;
  bool close_in_the_middle = false;
  bool abort_at_the_end = false;
  int inline_runners = 0;
  Duration spin_wait{};
};

// Fails the test when two threads are in it at once.
class CompletingRunner final : public BatchRunner {
 public:
  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    EXPECT_FALSE(busy_.exchange(true));
    CompleteAll(std::move(batch), absl::OkStatus(), "inline");
    EXPECT_TRUE(busy_.exchange(false));
    return absl::OkStatus();
  }

 private:
  std::atomic<bool> busy_{false};
};

class BatchQueueStressTest : public BatchQueueThreadsTest,
                             public testing::WithParamInterface<StressOptions> {
 protected:
  void Produce(BatchQueue& queue, unsigned seed, Tally& tally, std::atomic<int>& started);

  std::array<std::shared_ptr<const Model>, 4> models_ = {
      model_, MakeRowModel(metrics_, "max_queue_delay_us: 50 max_rows: 8", "delayed"),
      MakeRowModel(metrics_, "max_rows: 2", "narrow"),
      MakeRowModel(metrics_, "max_queue_requests: 4", "short")};
};

void BatchQueueStressTest::Produce(BatchQueue& queue, unsigned seed, Tally& tally,
                                   std::atomic<int>& started) {
  std::mt19937 random(seed);
  const auto one_in = [&random](unsigned n) { return random() % n == 0; };
  std::vector<std::unique_ptr<RequestProbe>> mine;
  for (int i = 0; i < GetParam().requests_per_producer; ++i) {
    const norm::DType dtype = one_in(4) ? norm::DType::kFloat16 : norm::DType::kFloat32;
    auto probe = std::make_unique<RequestProbe>(
        models_[random() % models_.size()],
        std::vector<std::int64_t>{static_cast<std::int64_t>(random() % 4), 1, 1}, dtype);
    if (one_in(3)) probe->request()->deadline = In(microseconds(random() % 200));
    probe->request()->may_run_inline = one_in(2);
    const bool cancel_early = one_in(20);
    if (cancel_early) probe->SetCancelled();
    ++started;
    if (!queue.Push(probe->request()).ok()) {
      ++tally.refused;
      EXPECT_EQ(probe->done_calls(), 0);
      std::this_thread::yield();  // As a client that is told to retry does: leave time to the
                                  // takers.
      continue;
    }
    ++tally.accepted;
    mine.push_back(std::move(probe));
    if (one_in(5)) {
      RequestProbe& victim = *mine[random() % mine.size()];
      victim.SetCancelled();
      queue.Cancel(victim.id());
    }
  }
  for (const auto& probe : mine) {
    probe->Wait();
    ++tally.ended[static_cast<std::size_t>(probe->code())];
  }
  for (const auto& probe : mine) EXPECT_EQ(probe->done_calls(), 1);
}

TEST_P(BatchQueueStressTest, EveryAcceptedRequestEndsExactlyOnce) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  BatchQueueOptions options;
  options.max_queue_requests = 64;
  options.limits.max_rows = 16;
  options.max_inline_bytes = 8;
  options.spin_wait = GetParam().spin_wait;
  std::vector<CompletingRunner> inline_runners(static_cast<std::size_t>(GetParam().inline_runners));
  BatchQueue queue(options, clock_);
  std::vector<BatchRunner*> runners;
  for (CompletingRunner& runner : inline_runners) runners.push_back(&runner);
  queue.RunInlineOn(std::move(runners));
  Takers takers(queue, GetParam().takers);
  Tally tally;
  std::atomic<int> started{0};
  std::vector<std::thread> producers;
  for (int i = 0; i < GetParam().producers; ++i) {
    producers.emplace_back(
        [&, i] { Produce(queue, seed + static_cast<unsigned>(i), tally, started); });
  }
  if (GetParam().close_in_the_middle) {
    const int half = GetParam().producers * GetParam().requests_per_producer / 2;
    while (started < half) std::this_thread::yield();
    queue.Close();
    if (GetParam().abort_at_the_end) queue.Abort(absl::UnavailableError("aborted"));
  }
  for (std::thread& producer : producers) producer.join();
  takers.Finish();

  int ended = 0;
  for (const auto& count : tally.ended) ended += count;
  EXPECT_EQ(ended, tally.accepted);
  EXPECT_EQ(tally.accepted + tally.refused,
            GetParam().producers * GetParam().requests_per_producer);
  if (!GetParam().abort_at_the_end) {
    EXPECT_GT(tally.ended[static_cast<std::size_t>(absl::StatusCode::kOk)], 0);
  }
  EXPECT_GT(tally.ended[static_cast<std::size_t>(absl::StatusCode::kCancelled)], 0);
  EXPECT_EQ(queue.waiting_requests(), 0);
  EXPECT_EQ(Queued(metrics_), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, BatchQueueStressTest,
    testing::Values(StressOptions{}, StressOptions{.takers = 1}, StressOptions{.inline_runners = 2},
                    StressOptions{.spin_wait = microseconds(20)},
                    StressOptions{.inline_runners = 2, .spin_wait = microseconds(20)},
                    StressOptions{.close_in_the_middle = true, .spin_wait = hours(1)},
                    StressOptions{.close_in_the_middle = true},
                    StressOptions{.close_in_the_middle = true, .abort_at_the_end = true}));

}  // namespace
}  // namespace normd

// The load run with real threads and the steady clock: what it does is asserted, not how fast.

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/load/load_run.h"
#include "tests/support/threads.h"

namespace normd::load {
namespace {

// Answers from its own threads, as fast as they get to it.
class ThreadedSender final : public Sender {
 public:
  explicit ThreadedSender(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~ThreadedSender() override {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      changed_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Send(const Outgoing&, Done done) override {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(done));
    changed_.SignalOne();
  }

 private:
  void Loop() {
    const SteadyClock clock{};
    while (true) {
      Done done;
      {
        MutexLock lock(mutex_);
        while (waiting_.empty() && !closed_) changed_.Wait(mutex_);
        if (waiting_.empty()) return;
        done = std::move(waiting_.front());
        waiting_.pop_front();
      }
      Outcome outcome;
      outcome.received = clock.Now();
      std::move(done)(outcome);
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Done> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

class LoadRunThreadsTest : public ::testing::Test {
 protected:
  // Runs while another thread looks on; returns the final state.
  LoadResult RunObserved(LoadOptions options) {
    LoadRun run(std::move(options), workload_, sender_, pacer_);
    std::atomic<bool> finished{false};
    std::int64_t last = 0;
    std::thread observer([&] {
      while (!finished.load()) {
        const std::int64_t now = run.Snapshot().measured.requests();
        EXPECT_GE(now, last);
        last = now;
        // Between two looks the workers get their locks, as between the looks of a live view.
        std::this_thread::yield();
      }
    });
    run.Run();
    finished.store(true);
    observer.join();
    return run.Snapshot();
  }

  const Workload workload_ = Workload::Create(ParseMix("a:1x4,b:1x8:f16:2").value(), 1).value();
  ThreadedSender sender_{4};
  SteadyPacer pacer_;
};

TEST_F(LoadRunThreadsTest, ClosedLoopCountsEveryRequest) {
  LoadOptions options;
  options.concurrency = 100;  // More than there are workers, so that some share one.
  options.stop.requests = 5000;
  const LoadResult result = RunObserved(std::move(options));
  EXPECT_EQ(result.measured.ok(), 5000);
  EXPECT_EQ(result.measured.response_time.count(), 5000);
  EXPECT_EQ(result.inflight, 0);
}

TEST_F(LoadRunThreadsTest, OpenLoopCountsEveryRequest) {
  LoadOptions options;
  options.arrivals = PoissonArrivals(1e6, 1);
  options.max_inflight = 50;
  options.stop.requests = 5000;
  const LoadResult result = RunObserved(std::move(options));
  EXPECT_EQ(result.measured.ok(), 5000);
  EXPECT_EQ(result.inflight, 0);
}

TEST_F(LoadRunThreadsTest, InterruptFromAnotherThreadEndsTheRun) {
  for (const bool open : {false, true}) {
    LoadOptions options;
    options.concurrency = 8;
    if (open) options.arrivals = ConstantArrivals(0.001);  // The next one is due in 1000 s.
    LoadRun run(std::move(options), workload_, sender_, pacer_);
    std::thread other([&] {
      WaitUntil([&] { return run.Snapshot().measured.requests() != 0; });
      run.Stop(StopReason::kInterrupted);
    });
    run.Run();
    other.join();
    EXPECT_EQ(run.Snapshot().reason, StopReason::kInterrupted);
  }
}

}  // namespace
}  // namespace normd::load

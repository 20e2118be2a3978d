#include "client/load/backlog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/load/load_run.h"
#include "tests/support/threads.h"

namespace normd::load {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kStart{std::chrono::hours(1)};

TimePoint At(int second) { return kStart + seconds(second); }

Backlog::Entry Call(std::uint64_t caller, int since, int timeout) {
  Backlog::Entry entry;
  entry.since = At(since);
  entry.deadline = timeout == 0 ? kNever : At(since + timeout);
  entry.outgoing.caller = caller;
  return entry;
}

bool Enter(Backlog& backlog, std::uint64_t caller, int since, int timeout) {
  Backlog::Entry entry = Call(caller, since, timeout);
  return backlog.Enter(entry);
}

std::uint64_t Sent(const Backlog::Next& next) { return next.send ? next.send->outgoing.caller : 0; }

std::vector<std::uint64_t> Late(const Backlog::Next& next) {
  std::vector<std::uint64_t> callers;
  for (const Backlog::Entry& entry : next.late) callers.push_back(entry.outgoing.caller);
  return callers;
}

TEST(BacklogTest, LetsAsManyOutAsItsLimit) {
  Backlog backlog(2);
  EXPECT_TRUE(Enter(backlog, 1, 0, 10));
  EXPECT_TRUE(Enter(backlog, 2, 0, 10));
  EXPECT_FALSE(Enter(backlog, 3, 0, 10));
  EXPECT_EQ(Sent(backlog.Leave(At(1))), 3);
  EXPECT_FALSE(Enter(backlog, 4, 1, 10));
  EXPECT_EQ(Sent(backlog.Leave(At(2))), 4);
  EXPECT_EQ(Sent(backlog.Leave(At(2))), 0);
  EXPECT_EQ(Sent(backlog.Leave(At(2))), 0);
  EXPECT_TRUE(Enter(backlog, 5, 2, 10));
  EXPECT_TRUE(Enter(backlog, 6, 2, 10));
  EXPECT_FALSE(Enter(backlog, 7, 2, 10));
}

TEST(BacklogTest, SendsTheOldestFirstWhileItHasHalfItsTime) {
  Backlog backlog(1);
  ASSERT_TRUE(Enter(backlog, 1, 0, 10));
  for (int i = 2; i < 5; ++i) ASSERT_FALSE(Enter(backlog, i, i - 2, 10));
  EXPECT_EQ(Sent(backlog.Leave(At(4))), 2);
  EXPECT_EQ(Sent(backlog.Leave(At(5))), 3);
  EXPECT_EQ(Sent(backlog.Leave(At(6))), 4);
}

TEST(BacklogTest, SendsTheNewestFirstOnceTheOldestHasSpentHalf) {
  Backlog backlog(1);
  ASSERT_TRUE(Enter(backlog, 1, 0, 10));
  for (int i = 2; i < 6; ++i) ASSERT_FALSE(Enter(backlog, i, i - 2, 10));
  EXPECT_EQ(Sent(backlog.Leave(At(5))), 5);
  EXPECT_EQ(Sent(backlog.Leave(At(6))), 4);
  const Backlog::Next next = backlog.Leave(At(10));
  EXPECT_THAT(Late(next), ElementsAre(2));
  EXPECT_EQ(Sent(next), 3);
}

TEST(BacklogTest, NeverSendsWhatHasReachedItsDeadline) {
  Backlog backlog(1);
  ASSERT_TRUE(Enter(backlog, 1, 0, 10));
  ASSERT_FALSE(Enter(backlog, 2, 0, 10));
  ASSERT_FALSE(Enter(backlog, 3, 1, 2));  // Before the oldest.
  const Backlog::Next next = backlog.Leave(At(6));
  EXPECT_THAT(Late(next), ElementsAre(3));
  EXPECT_EQ(Sent(next), 2);
  EXPECT_EQ(Sent(backlog.Leave(At(6))), 0);
  EXPECT_TRUE(Enter(backlog, 4, 6, 10));
}

TEST(BacklogTest, KeepsTheOrderOfCallsWithoutDeadlines) {
  Backlog backlog(1);
  ASSERT_TRUE(Enter(backlog, 1, 0, 0));
  for (int i = 2; i < 5; ++i) ASSERT_FALSE(Enter(backlog, i, 0, 0));
  for (int i = 2; i < 5; ++i) {
    const Backlog::Next next = backlog.Leave(At(1000000 * i));
    EXPECT_EQ(Sent(next), i);
    EXPECT_THAT(Late(next), IsEmpty());
  }
}

TEST(BacklogTest, AnEndSendsTheNextEndsLateCallsAndThenItself) {
  Backlog backlog(1);
  std::vector<std::string> told;
  ASSERT_TRUE(Enter(backlog, 1, 0, 10));
  for (int i = 2; i < 4; ++i) {
    Backlog::Entry entry = Call(i, 0, i == 2 ? 4 : 0);
    entry.done = [&told](const Outcome& outcome) { told.push_back(outcome.message); };
    ASSERT_FALSE(backlog.Enter(entry));
  }
  Outcome first;
  first.received = At(5);
  first.message = "first";
  backlog.End(
      first, [&told](const Outcome& outcome) { told.push_back(outcome.message); },
      [&told](Backlog::Entry next) { told.push_back(std::to_string(next.outgoing.caller)); });
  EXPECT_THAT(told, ElementsAre("3", "the deadline passed before the call could be sent", "first"));
}

TEST(BacklogTest, LosesNoCallBetweenThreads) {
  constexpr int kCalls = 20000;
  Backlog backlog(8);
  std::atomic<int> ended{0};
  const auto finish = [&](int now) {
    // The call that ends, and each that follows it and ends at once.
    for (bool out = true; out;) {
      const Backlog::Next next = backlog.Leave(At(now));
      ended += 1 + static_cast<int>(next.late.size());
      out = next.send.has_value();
    }
  };
  RunThreads(4, [&](int) {
    for (int i = 0; i < kCalls; ++i) {
      if (Enter(backlog, 1, i, i % 7)) finish(i + 3);
    }
  });
  EXPECT_EQ(ended, 4 * kCalls);
}

// What a connection of 4 calls at a time answers in time, of what it could, when 512 callers with
// a deadline of 10 s share it: the calls inside share what is done equally, and a call that is
// given up has cost its part.
double Goodput(std::size_t limit) {
  constexpr std::size_t kAtOnce = 4;
  constexpr Duration kWork = std::chrono::milliseconds(50);
  constexpr Duration kStep = std::chrono::milliseconds(1);
  struct Inside {
    TimePoint deadline;
    Duration left_to_do;
  };
  Backlog backlog(limit);
  std::deque<TimePoint> in_grpc;  // The oldest first, by deadline.
  std::vector<Inside> inside;
  std::size_t callers = 0;
  int answered = 0;
  const auto leave = [&](TimePoint now) {
    --callers;
    Backlog::Next next = backlog.Leave(now);
    callers -= next.late.size();
    if (next.send) in_grpc.push_back(next.send->deadline);
  };
  for (TimePoint now = kStart; now < At(120); now += kStep) {
    for (; callers < 512; ++callers) {
      Backlog::Entry entry{now, now + seconds(10), {}, {}};
      if (backlog.Enter(entry)) in_grpc.push_back(entry.deadline);
    }
    while (!in_grpc.empty() && in_grpc.front() <= now) in_grpc.pop_front(), leave(now);
    while (!in_grpc.empty() && inside.size() < kAtOnce) {
      inside.push_back({in_grpc.front(), kWork});
      in_grpc.pop_front();
    }
    for (std::size_t i = 0; i < inside.size();) {
      inside[i].left_to_do -= kStep / static_cast<std::int64_t>(inside.size());
      const bool late = inside[i].deadline <= now;
      if (!late && inside[i].left_to_do > Duration(0)) {
        ++i;
        continue;
      }
      if (!late && now >= At(30)) ++answered;
      inside.erase(inside.begin() + static_cast<std::ptrdiff_t>(i));
      leave(now);
    }
  }
  return answered * std::chrono::duration<double>(kWork).count() / 90;
}

TEST(BacklogTest, KeepsGoodputWhereTheOldestFirstLosesIt) {
  EXPECT_GE(Goodput(32), 0.95);
  EXPECT_LT(Goodput(100000), 0.8) << "the simulation shows nothing";
}

// The load run with real threads and the steady clock: what it does is asserted, not how fast.

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

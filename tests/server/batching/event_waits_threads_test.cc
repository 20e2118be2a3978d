// Requests that wait for events, on many threads: each ends exactly once, whatever comes together.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/batching/batch_queue.h"
#include "server/batching/event_waits.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_shared_device_events.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

constexpr int kThreads = 4;
constexpr int kRequests = 500;  // Of each thread.

class EventWaitsThreadsTest : public ::testing::Test {
 protected:
  explicit EventWaitsThreadsTest(Duration max_wait = std::chrono::milliseconds(50))
      : waits_(events_, Limits(max_wait), metrics_, clock_) {
    queue_.HoldWith(&waits_);
    waits_.Start();
    lane_ = std::thread([this] {
      while (std::unique_ptr<Batch> batch = queue_.Take()) {
        for (auto& request : batch->requests) Complete(std::move(request), Buffer(), {});
      }
    });
    reaper_ = std::thread([this] { queue_.Reap(); });
  }
  ~EventWaitsThreadsTest() override {
    queue_.Close();
    lane_.join();
    reaper_.join();
  }

  static EventWaitLimits Limits(Duration max_wait) {
    EventWaitLimits limits;
    limits.max_requests = limits.max_holder_requests = kThreads * kRequests;
    limits.max_wait = max_wait;
    return limits;
  }

  std::unique_ptr<RequestProbe> Make(const std::string& handle) {
    auto probe = std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1});
    probe->request()->event = std::make_unique<AwaitedEvent>(AwaitedEvent{0, handle});
    return probe;
  }

  // Each of its requests: an event that is reached, never reached, or garbage; some are cancelled,
  // with an event that is reached at the same time or never.
  void PushSome(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (int i = 0; i < kRequests; ++i) {
      const auto what = random() % 8;
      const std::string handle = what == 0 ? std::string(kEventHandleBytes, '?') : events_.Make();
      RequestProbe& probe = *probes.emplace_back(Make(handle));
      const std::uint64_t id = probe.id();
      ASSERT_TRUE(queue_.Push(probe.request()).ok());
      if (what >= 3) events_.Reach(handle);
      if (what == 2 || what == 7) {
        probe.SetCancelled();
        queue_.Cancel(id);
      }
    }
    for (const auto& probe : probes) {
      probe->Wait();
      EXPECT_EQ(probe->done_calls(), 1);
      EXPECT_TRUE(probe->input_released());
      ++ended_[static_cast<std::size_t>(probe->code())];
    }
  }

  SteadyClock clock_;
  CountingModelMetrics model_metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(model_metrics_);
  testing::FakeSharedDeviceEvents events_;
  CountingRegionMetrics metrics_;
  BatchQueue queue_{Options(), clock_};
  EventWaits waits_;
  std::thread lane_;
  std::thread reaper_;
  std::array<std::atomic<int>, 17> ended_{};

  static BatchQueueOptions Options() {
    BatchQueueOptions options;
    options.max_queue_requests = kThreads * kRequests;
    return options;
  }
};

TEST_F(EventWaitsThreadsTest, EachEndsOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] { PushSome(static_cast<std::uint64_t>(i) + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto of = [this](absl::StatusCode code) {
    return ended_[static_cast<std::size_t>(code)].load();
  };
  EXPECT_GT(of(absl::StatusCode::kOk), 0);
  EXPECT_GT(of(absl::StatusCode::kInvalidArgument), 0);
  EXPECT_GT(of(absl::StatusCode::kDeadlineExceeded), 0);
  EXPECT_GT(of(absl::StatusCode::kCancelled), 0);
  EXPECT_EQ(metrics_.event_waiting, 0);
  EXPECT_EQ(waits_.waiting_requests(), 0);
}

// Whose waits nothing else ends.
class EventWaitsForLongTest : public EventWaitsThreadsTest {
 protected:
  EventWaitsForLongTest() : EventWaitsThreadsTest(std::chrono::hours(1)) {}

  void WaitUntilClosed() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (events_.opened() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(events_.opened(), 0);
  }
};

TEST_F(EventWaitsForLongTest, AnAbortMeetsAll) {
  std::vector<std::unique_ptr<RequestProbe>> probes;
  std::atomic<int> pushed{0};
  for (int i = 0; i < kRequests; ++i) {
    const std::string handle = events_.Make();
    probes.push_back(Make(handle));
    if (i % 2 == 0) events_.Reach(handle);
  }
  std::thread pusher([&] {
    for (const auto& probe : probes) {
      if (!queue_.Push(probe->request()).ok()) return;
      ++pushed;
    }
  });
  while (pushed < kRequests / 2) std::this_thread::yield();
  queue_.Close();
  queue_.Abort(absl::UnavailableError("the server is stopping"));
  pusher.join();
  for (int i = 0; i < pushed; ++i) {
    const RequestProbe& probe = *probes[static_cast<std::size_t>(i)];
    probe.Wait();
    EXPECT_EQ(probe.done_calls(), 1);
    if (i % 2 == 1 || probe.code() != absl::StatusCode::kOk) {
      EXPECT_EQ(probe.code(), absl::StatusCode::kUnavailable) << i;
    }
  }
  EXPECT_EQ(waits_.waiting_requests(), 0);
  WaitUntilClosed();
}

TEST_F(EventWaitsForLongTest, TheEventsOfCancelledRequestsAreClosed) {
  const std::string closed = events_.Make();
  const std::string late = events_.Make();
  const std::unique_ptr<RequestProbe> first = Make(closed);
  const std::unique_ptr<RequestProbe> second = Make(late);
  // As the thread is about to sleep for as long as nothing comes.
  events_.OnClosed(closed, [this, id = second->id()] { queue_.Cancel(id); });
  ASSERT_TRUE(queue_.Push(first->request()).ok());
  ASSERT_TRUE(queue_.Push(second->request()).ok());
  while (events_.asked(closed) == 0 || events_.asked(late) == 0) std::this_thread::yield();
  queue_.Cancel(first->id());
  second->Wait();
  WaitUntilClosed();
}

// It naps for 20 us, to which the kernel would add 50.
TEST_F(EventWaitsForLongTest, TheThreadWakesOnTime) {
  const std::string handle = events_.Make();
  std::atomic<int> slack{-1};
  events_.OnAsked(handle, [&slack] { slack = prctl(PR_GET_TIMERSLACK); });
  const std::unique_ptr<RequestProbe> probe = Make(handle);
  ASSERT_TRUE(queue_.Push(probe->request()).ok());
  while (slack < 0) std::this_thread::yield();
  EXPECT_EQ(slack, 1);
  queue_.Cancel(probe->id());
  probe->Wait();
}

}  // namespace
}  // namespace normd

// Requests that wait for events, on many threads: each ends exactly once, whatever comes together.

#include <gtest/gtest.h>

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
  EventWaitsThreadsTest() {
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

  static EventWaitLimits Limits() {
    EventWaitLimits limits;
    limits.max_requests = limits.max_holder_requests = kThreads * kRequests;
    limits.max_wait = std::chrono::milliseconds(50);
    limits.max_idle = std::chrono::milliseconds(1);
    return limits;
  }

  // Each of its requests: an event that is reached, never reached, or garbage; some are cancelled.
  void PushSome(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (int i = 0; i < kRequests; ++i) {
      auto& probe = *probes.emplace_back(
          std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1}));
      const auto what = random() % 8;
      const std::string handle = what == 0 ? std::string(kEventHandleBytes, '?') : events_.Make();
      probe.request()->event = std::make_unique<AwaitedEvent>(AwaitedEvent{0, handle});
      const std::uint64_t id = probe.id();
      ASSERT_TRUE(queue_.Push(probe.request()).ok());
      if (what >= 2) events_.Reach(handle);
      if (what == 7) {
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
  EventWaits waits_{events_, Limits(), metrics_, clock_};
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
  EXPECT_EQ(metrics_.event_waiting, 0);
  EXPECT_EQ(waits_.waiting_requests(), 0);
}

TEST_F(EventWaitsThreadsTest, AnAbortMeetsAll) {
  std::vector<std::unique_ptr<RequestProbe>> probes;
  std::atomic<int> pushed{0};
  for (int i = 0; i < kRequests; ++i) {
    auto& probe = *probes.emplace_back(
        std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1}));
    const std::string handle = events_.Make();
    probe.request()->event = std::make_unique<AwaitedEvent>(AwaitedEvent{0, handle});
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
    probes[static_cast<std::size_t>(i)]->Wait();
    EXPECT_EQ(probes[static_cast<std::size_t>(i)]->done_calls(), 1);
  }
  EXPECT_EQ(waits_.waiting_requests(), 0);
}

}  // namespace
}  // namespace normd

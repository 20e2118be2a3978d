// What the tests of the queue's decisions share: a fake clock, one thread, no waiting.

#ifndef NORMD_TESTS_SERVER_BATCHING_BATCH_QUEUE_FIXTURE_H_
#define NORMD_TESTS_SERVER_BATCHING_BATCH_QUEUE_FIXTURE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/test_lanes.h"

namespace normd {

class BatchQueueTest : public testing::Test {
 protected:
  ~BatchQueueTest() override {
    queue().Close();
    queue().Abort(absl::UnavailableError("end of test"));
    lane_.Flush();
    EXPECT_EQ(Queued(metrics_), 0);
    for (const auto& probe : probes_)
      EXPECT_EQ(probe->done_calls(), 1) << "request " << probe->id();
  }

  // The first call decides the options.
  BatchQueue& queue() {
    if (queue_ == nullptr) queue_ = std::make_unique<BatchQueue>(options_, clock_);
    return *queue_;
  }
  // A request of `samples` rows of `spatial` float32 elements, in the queue.
  RequestProbe& Push(const std::shared_ptr<const Model>& model, std::int64_t samples = 1,
                     std::int64_t spatial = 1, TimePoint deadline = kNever,
                     norm::DType dtype = norm::DType::kFloat32,
                     Priority priority = Priority::kNormal) {
    RequestProbe& probe = Make(model, samples, spatial, dtype);
    probe.request()->deadline = deadline;
    probe.request()->priority = priority;
    EXPECT_TRUE(queue().Push(probe.request()).ok());
    EXPECT_EQ(probe.request(), nullptr);
    return probe;
  }
  RequestProbe& Make(const std::shared_ptr<const Model>& model, std::int64_t samples = 1,
                     std::int64_t spatial = 1, norm::DType dtype = norm::DType::kFloat32) {
    probes_.push_back(std::make_unique<RequestProbe>(
        model, std::vector<std::int64_t>{samples, 1, spatial}, dtype));
    return *probes_.back();
  }
  // Forgets the last made request, which the queue refused.
  void DropLast() { probes_.pop_back(); }

  // The ids of the next batch, which goes to the lane; empty when there is none yet.
  std::vector<std::uint64_t> Pull() {
    BatchQueue::Poll poll = queue().TryTake();
    std::vector<std::uint64_t> ids;
    if (poll.batch == nullptr) return ids;
    for (const auto& request : poll.batch->requests) ids.push_back(request->id);
    pulled_model_ = poll.batch->model.get();
    pulled_bytes_ = poll.batch->bytes;
    EXPECT_TRUE(lane_.Execute(std::move(poll.batch)).ok());
    return ids;
  }
  TimePoint In(int us) const { return clock_.Now() + std::chrono::microseconds(us); }

  FakeClock clock_;
  ModelMetrics metrics_;
  ModelMetrics other_metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(metrics_);
  BatchQueueOptions options_;
  PuppetLane lane_;
  // The last batch's.
  const Model* pulled_model_ = nullptr;
  std::int64_t pulled_bytes_ = 0;

 private:
  std::unique_ptr<BatchQueue> queue_;
  std::vector<std::unique_ptr<RequestProbe>> probes_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_BATCHING_BATCH_QUEUE_FIXTURE_H_

// Requests that are computed within their push.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/server/batching/batch_queue_fixture.h"

namespace normd {
namespace {

using std::chrono::microseconds;

class BatchQueueInlineTest : public BatchQueueTest {
 protected:
  BatchQueueInlineTest() { options_.max_inline_bytes = 400; }
  ~BatchQueueInlineTest() override {
    queue().RunInlineOn({});
    runner_.Flush();
  }
  RequestProbe& PushInline(std::int64_t spatial = 1) {
    RequestProbe& probe = Make(model_, 1, spatial);
    probe.request()->may_run_inline = true;
    EXPECT_TRUE(queue().Push(probe.request()).ok());
    return probe;
  }
  PuppetLane runner_{"inline"};
};

TEST_F(BatchQueueInlineTest, ASmallRequestIsComputedWithinItsPush) {
  queue().RunInlineOn({&runner_});
  clock_.Advance(microseconds(5));
  const auto id = PushInline().id();
  ASSERT_EQ(runner_.held(), 1u);
  const Batch& batch = runner_.front();
  EXPECT_EQ(batch.requests.front()->id, id);
  EXPECT_EQ(batch.requests.front()->admitted, clock_.Now());
  EXPECT_EQ(batch.model, model_);
  EXPECT_EQ(batch.bytes, 4);
  EXPECT_EQ(queue().waiting_requests(), 0);
  EXPECT_EQ(metrics_.queued, 0);
}

TEST_F(BatchQueueInlineTest, OthersWait) {
  Pull();        // Makes the queue.
  PushInline();  // No runner yet.
  queue().RunInlineOn({&runner_});
  Push(model_);  // May not.
  EXPECT_EQ(queue().waiting_requests(), 2);
  PushInline();  // Would overtake.
  EXPECT_EQ(queue().waiting_requests(), 3);
  Pull();
  PushInline(101);  // Too large.
  EXPECT_EQ(queue().waiting_requests(), 1);
  EXPECT_EQ(runner_.held(), 0u);
}

TEST_F(BatchQueueInlineTest, ARunnerComputesOneBatchAtATimeUntilItFails) {
  // Pushes another request from within the first one's computation.
  class Nesting final : public BatchRunner {
   public:
    explicit Nesting(std::function<void()> within) : within_(std::move(within)) {}
    absl::Status Execute(std::unique_ptr<Batch> batch) override {
      ++batches_;
      if (within_) std::exchange(within_, nullptr)();
      CompleteAll(std::move(batch), absl::OkStatus(), "nesting");
      return batches_ < 2 ? absl::OkStatus() : absl::InternalError("broken");
    }
    int batches_ = 0;

   private:
    std::function<void()> within_;
  };
  Nesting runner([&] {
    PushInline();
    EXPECT_EQ(queue().waiting_requests(), 1);
  });
  queue().RunInlineOn({&runner});
  PushInline();
  EXPECT_EQ(runner.batches_, 1);
  Pull();
  PushInline();
  EXPECT_EQ(runner.batches_, 2);
  PushInline();
  EXPECT_EQ(runner.batches_, 2) << "used after it failed";
  EXPECT_EQ(queue().waiting_requests(), 1);
  queue().RunInlineOn({});
}

TEST_F(BatchQueueInlineTest, ARequestThatIsCancelledIsNotComputed) {
  queue().RunInlineOn({&runner_});
  RequestProbe& probe = Make(model_);
  probe.request()->may_run_inline = true;
  probe.SetCancelled();
  ASSERT_TRUE(queue().Push(probe.request()).ok());
  EXPECT_EQ(probe.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(runner_.held(), 0u);
}

}  // namespace
}  // namespace normd

// What makes a batch, and when it may go.

#include "server/batching/batch_queue.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/batching/batch_queue_fixture.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using testing::ElementsAre;

TEST_F(BatchQueueTest, HasNothingWhenEmpty) {
  const BatchQueue::Poll poll = queue().TryTake();
  EXPECT_EQ(poll.batch, nullptr);
  EXPECT_EQ(poll.ask_again, kNever);
  EXPECT_FALSE(poll.finished);
}

TEST_F(BatchQueueTest, DifferentSampleCountsAndSpatialSizesShareABatchInOrderOfArrival) {
  const auto a = Push(model_, 3, 7).id();
  const auto b = Push(model_, 1, 1000).id();
  const auto c = Push(model_, 0, 5).id();
  EXPECT_THAT(Pull(), ElementsAre(a, b, c));
  const Batch& batch = lane_.front();
  EXPECT_EQ(batch.model, model_);
  EXPECT_EQ(batch.bytes, 4 * (3 * 7 + 1000));
  EXPECT_EQ(batch.taken, clock_.Now());
}

TEST_F(BatchQueueTest, TypesAndVersionsDoNotShareABatch) {
  const auto other = MakeRowModel(metrics_);  // Same name and version, loaded again.
  const auto a = Push(model_).id();
  const auto b = Push(model_, 1, 1, kNever, norm::DType::kFloat16).id();
  const auto c = Push(other).id();
  const auto d = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre(a, d));
  EXPECT_THAT(Pull(), ElementsAre(c));
  EXPECT_THAT(Pull(), ElementsAre(b));
}

TEST_F(BatchQueueTest, RowsAndBytesBoundABatch) {
  options_.limits.max_rows = 4;
  options_.limits.max_bytes = 400;
  const auto a = Push(model_, 2).id();
  const auto b = Push(model_, 2).id();
  const auto c = Push(model_, 1, 60).id();
  const auto d = Push(model_, 1, 60).id();
  const auto e = Push(model_, 9, 900).id();
  EXPECT_THAT(Pull(), ElementsAre(a, b));
  EXPECT_THAT(Pull(), ElementsAre(c));
  EXPECT_THAT(Pull(), ElementsAre(d));
  EXPECT_THAT(Pull(), ElementsAre(e));
}

TEST_F(BatchQueueTest, HoldsALineBackUntilItsOldestReachesTheQueueDelay) {
  options_.limits.max_queue_delay = microseconds(100);
  const auto a = Push(model_).id();
  const TimePoint due = In(100);
  clock_.Advance(microseconds(60));
  const auto b = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre());
  EXPECT_EQ(queue().TryTake().ask_again, due);
  clock_.Advance(microseconds(40));
  EXPECT_THAT(Pull(), ElementsAre(a, b));
}

TEST_F(BatchQueueTest, AFullBatchDoesNotWaitForTheQueueDelay) {
  options_.limits.max_queue_delay = microseconds(100);
  options_.limits.max_rows = 2;
  const auto a = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre());
  const auto b = Push(model_).id();
  const auto c = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre(a, b));
  EXPECT_THAT(Pull(), ElementsAre());
  clock_.Advance(microseconds(100));
  EXPECT_THAT(Pull(), ElementsAre(c));
}

TEST_F(BatchQueueTest, ALineThatIsHeldBackLetsYoungerOnesPass) {
  const auto patient = MakeRowModel(metrics_, "max_queue_delay_us: 100", "patient");
  const auto a = Push(patient).id();
  const auto b = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre(b));
  EXPECT_THAT(Pull(), ElementsAre());
  clock_.Advance(microseconds(100));
  EXPECT_THAT(Pull(), ElementsAre(a));
}

TEST_F(BatchQueueTest, CancellingWhatFilledABatchHoldsTheLineBackAgain) {
  options_.limits.max_queue_delay = microseconds(100);
  options_.limits.max_rows = 2;
  const auto a = Push(model_).id();
  RequestProbe& b = Push(model_);
  queue().Cancel(b.id());
  EXPECT_THAT(Pull(), ElementsAre());
  clock_.Advance(microseconds(100));
  EXPECT_THAT(Pull(), ElementsAre(a));
}

TEST_F(BatchQueueTest, CancellingTheOldestMovesTheQueueDelayToTheNext) {
  options_.limits.max_queue_delay = microseconds(100);
  RequestProbe& a = Push(model_);
  clock_.Advance(microseconds(60));
  const auto b = Push(model_).id();
  queue().Cancel(a.id());
  clock_.Advance(microseconds(40));
  EXPECT_THAT(Pull(), ElementsAre());
  clock_.Advance(microseconds(60));
  EXPECT_THAT(Pull(), ElementsAre(b));
}

TEST_F(BatchQueueTest, TheQueueDelayEndsBeforeARequestHasWaitedForAsLongAsItMay) {
  options_.limits.max_queue_delay = microseconds(100);
  const auto patient = Push(model_).id();
  RequestProbe& probe = Make(model_);
  probe.request()->queue_timeout = microseconds(40);
  ASSERT_TRUE(queue().Push(probe.request()).ok());
  EXPECT_EQ(queue().TryTake().ask_again, In(30));
  clock_.Advance(microseconds(10));
  queue().Cancel(probe.id());
  EXPECT_EQ(queue().TryTake().ask_again, In(90)) << "the one that was in a hurry is gone";
  RequestProbe& by_deadline = Make(model_);
  by_deadline.request()->deadline = In(80);
  ASSERT_TRUE(queue().Push(by_deadline.request()).ok());
  clock_.Advance(microseconds(59));
  EXPECT_THAT(Pull(), ElementsAre());
  clock_.Advance(microseconds(1));
  EXPECT_THAT(Pull(), ElementsAre(patient, by_deadline.id()));
}

TEST_F(BatchQueueTest, AModelsConfigOverridesEachLimit) {
  options_.limits.max_rows = 1;
  options_.limits.max_bytes = 1;
  options_.limits.max_queue_delay = std::chrono::hours(1);
  options_.max_queue_requests = 0;
  const auto own = MakeRowModel(
      metrics_, "max_rows: 2 max_bytes: 1000 max_queue_delay_us: 7 max_queue_requests: 3", "own");
  const auto a = Push(own).id();
  EXPECT_EQ(queue().TryTake().ask_again, In(7));
  const auto b = Push(own).id();
  const auto c = Push(own).id();
  EXPECT_TRUE(absl::IsResourceExhausted(queue().Push(Make(own).request())));
  DropLast();
  EXPECT_THAT(Pull(), ElementsAre(a, b));
  clock_.Advance(microseconds(7));
  EXPECT_THAT(Pull(), ElementsAre(c));
}

TEST_F(BatchQueueTest, CountsWhatWaits) {
  Push(model_);
  Push(model_);
  EXPECT_EQ(queue().waiting_requests(), 2);
  EXPECT_EQ(Queued(metrics_), 2);
  Pull();
  EXPECT_EQ(queue().waiting_requests(), 0);
  EXPECT_EQ(Queued(metrics_), 0);
}

TEST_F(BatchQueueTest, RecordsTheTimeInTheQueue) {
  RequestProbe& taken = Push(model_);
  clock_.Advance(microseconds(30));
  Pull();
  RequestProbe& cancelled = Push(model_);
  clock_.Advance(microseconds(5));
  queue().Cancel(cancelled.id());
  lane_.Flush();
  EXPECT_EQ(taken.completion().stages[Stage::kQueue], microseconds(30));
  EXPECT_EQ(cancelled.completion().stages[Stage::kQueue], microseconds(5));
}

TEST_F(BatchQueueTest, ReleasesWhatARequestHeldBeforeItsDone) {
  auto model = MakeRowModel(metrics_, "", "going");
  const std::weak_ptr<const Model> watch = model;
  RequestProbe& probe = Push(model);
  model.reset();
  bool gone = false;
  probe.OnDone([&] { gone = watch.expired() && probe.input_released(); });
  queue().Cancel(probe.id());
  EXPECT_TRUE(gone);
}

TEST_F(BatchQueueTest, AModelAtTheAddressOfOneThatIsGoneHasItsOwnLimits) {
  // Whether the allocator gives the same address again is its choice; it usually does.
  auto first = MakeRowModel(metrics_, "max_queue_requests: 1", "first");
  queue().Cancel(Push(first).id());
  first.reset();
  const auto second = MakeRowModel(metrics_, "max_queue_requests: 2", "second");
  Push(second);
  Push(second);
}

class FakeStager final : public InputStager {
 public:
  void Stage(Request& request) override {
    request.staged = Buffer(block.data(), block.size(), {});
    ++calls;
  }
  int calls = 0;
  std::array<std::byte, 4> block{};
};

TEST_F(BatchQueueTest, InputsAreStagedBeforeALaneTakesThemUnlessTheirRequestIsCancelled) {
  FakeStager stager;
  queue().StageWith(&stager);
  Push(model_);
  const std::unique_ptr<Batch> batch = queue().TryTake().batch;
  ASSERT_NE(batch, nullptr);
  EXPECT_TRUE(batch->requests.front()->IsStaged());
  Fail(std::move(batch->requests.front()), absl::CancelledError("seen"));

  RequestProbe& cancelled = Make(model_);
  cancelled.SetCancelled();
  EXPECT_TRUE(queue().Push(cancelled.request()).ok());
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stager.calls, 1);
}

// Requests that are computed within their push.

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
  EXPECT_EQ(Queued(metrics_), 0);
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

// The caller of Push ends a call whose request was not accepted; this one has ended already.
TEST_F(BatchQueueInlineTest, ARunnerWithoutMemoryEndsTheRequestAndIsUsedAgain) {
  class Spent final : public BatchRunner {
   public:
    absl::Status Execute(std::unique_ptr<Batch> batch) override {
      if (batches++ == 0) throw std::bad_alloc();
      CompleteAll(std::move(batch), absl::OkStatus(), "spent");
      return absl::OkStatus();
    }
    int batches = 0;
  };
  Spent runner;
  queue().RunInlineOn({&runner});
  EXPECT_EQ(PushInline().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(PushInline().code(), absl::StatusCode::kOk);
  EXPECT_EQ(runner.batches, 2);
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

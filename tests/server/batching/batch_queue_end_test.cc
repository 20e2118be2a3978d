// Requests that no lane computes: refused, cancelled, expired or aborted; and the queue's own end.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/batching/batch_queue_fixture.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using testing::ElementsAre;
using testing::HasSubstr;

// Refused at the push, or to make room for another.

TEST_F(BatchQueueTest, AFullQueueRefusesItsModelAlone) {
  options_.max_queue_requests = 2;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  Push(model_);
  Push(model_, 1, 1, kNever, norm::DType::kFloat64);  // Types of one version share its places.
  RequestProbe& refused = Make(model_);
  const absl::Status status = queue().Push(refused.request());
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"rows\": 2 requests wait"));
  EXPECT_NE(refused.request(), nullptr) << "the caller keeps what was refused";
  EXPECT_FALSE(refused.done());
  EXPECT_EQ(Rejected(metrics_, Rejection::kQueueFull), 1);
  DropLast();

  Push(other);
  EXPECT_EQ(Rejected(other_metrics_, Rejection::kQueueFull), 0);
  Pull();
  Push(model_);  // A place is free again.
}

TEST_F(BatchQueueTest, WhatWouldBeLateIsRefusedAndToldByHowMuch) {
  options_.limits.max_rows = 1;
  for (int i = 0; i < 40; ++i) Push(model_);
  for (int i = 0; i < 10; ++i) {
    Pull();
    clock_.Advance(std::chrono::milliseconds(1));
  }
  RequestProbe& late = Make(model_);
  late.request()->deadline = In(10'000);
  absl::Status status = queue().Push(late.request());
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"rows\": a request would wait 30.5 ms, wanted at most 7.5 ms, three "
                        "quarters of the 10 ms that the deadline leaves"));
  late.request()->deadline = kNever;
  late.request()->queue_timeout = microseconds(500);
  status = queue().Push(late.request());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of the 0.5 ms that queue_timeout_ns leaves"));
  EXPECT_EQ(Rejected(metrics_, Rejection::kLate), 2);
  EXPECT_EQ(late.done_calls(), 0) << "the caller keeps what was refused";
  DropLast();
  Push(model_, 1, 1, In(42'000));  // Three quarters are more than 31 ms.
}

TEST_F(BatchQueueTest, TheNewestOfAFloodGivesWayAndIsTold) {
  options_.max_queue_requests = 2;
  std::vector<RequestProbe*> flood;
  for (int i = 0; i < 2; ++i) {
    flood.push_back(&Make(model_));
    flood.back()->request()->holder = 1;
    EXPECT_TRUE(queue().Push(flood.back()->request()).ok());
  }
  RequestProbe& light = Make(model_);
  light.request()->holder = 2;
  EXPECT_TRUE(queue().Push(light.request()).ok());
  EXPECT_FALSE(flood[0]->done());
  ASSERT_TRUE(flood[1]->done());
  EXPECT_EQ(flood[1]->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(flood[1]->completion().status.message()),
              HasSubstr("it is full, and this caller has 2 requests in it"));
  EXPECT_EQ(Rejected(metrics_, Rejection::kQueueFull), 1);
  EXPECT_THAT(Pull(), ElementsAre(flood[0]->id(), light.id()));
}

// Cancelling, at each point of a request's way.

TEST_F(BatchQueueTest, CancelEndsAWaitingRequest) {
  RequestProbe& a = Push(model_);
  const auto b = Push(model_).id();
  a.SetCancelled();
  queue().Cancel(a.id());
  EXPECT_EQ(a.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Pull(), ElementsAre(b));
}

TEST_F(BatchQueueTest, CancelBeforePushEndsTheRequestAtItsPush) {
  RequestProbe& probe = Make(model_);
  probe.SetCancelled();
  queue().Cancel(probe.id());
  EXPECT_TRUE(queue().Push(probe.request()).ok());
  EXPECT_EQ(probe.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Pull(), ElementsAre());
}

TEST_F(BatchQueueTest, CancelAfterTheTakeLeavesTheRequestToItsLane) {
  RequestProbe& probe = Push(model_);
  EXPECT_THAT(Pull(), ElementsAre(probe.id()));
  queue().Cancel(probe.id());
  EXPECT_FALSE(probe.done());
  lane_.CompleteFront();
  queue().Cancel(probe.id());
  EXPECT_EQ(probe.code(), absl::StatusCode::kOk);
}

TEST_F(BatchQueueTest, CancelTwiceEndsOnce) {
  RequestProbe& probe = Push(model_);
  queue().Cancel(probe.id());
  queue().Cancel(probe.id());
  EXPECT_EQ(probe.done_calls(), 1);
}

// Deadlines.

TEST_F(BatchQueueTest, ExpiresOnTimeWhileEveryLaneIsBusy) {
  RequestProbe& late = Push(model_, 1, 1, In(200));
  RequestProbe& early = Push(model_, 1, 1, In(100));
  const TimePoint late_deadline = In(200);
  EXPECT_EQ(queue().ExpireDue(), In(100));
  clock_.Advance(microseconds(100));
  EXPECT_EQ(queue().ExpireDue(), late_deadline);
  EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(late.done());
  clock_.Advance(microseconds(100));
  EXPECT_EQ(queue().ExpireDue(), kNever);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(BatchQueueTest, ATakeLeavesOutWhatHasExpired) {
  RequestProbe& expired = Push(model_, 1, 1, In(100));
  const auto b = Push(model_).id();
  clock_.Advance(microseconds(100));
  EXPECT_THAT(Pull(), ElementsAre(b));
  EXPECT_EQ(expired.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(BatchQueueTest, ARequestThatComesExpiredEndsAtItsPush) {
  RequestProbe& probe = Push(model_, 1, 1, clock_.Now());
  EXPECT_EQ(probe.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue().waiting_requests(), 0);
}

TEST_F(BatchQueueTest, EndsWhatHasWaitedItsQueueTimeoutWhileEveryLaneIsBusy) {
  RequestProbe& probe = Make(model_);
  probe.request()->queue_timeout = microseconds(70);
  probe.request()->deadline = In(100);
  ASSERT_TRUE(queue().Push(probe.request()).ok());
  EXPECT_EQ(queue().ExpireDue(), In(70));
  clock_.Advance(microseconds(70));
  queue().ExpireDue();
  EXPECT_EQ(probe.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(probe.completion().status.message()),
              HasSubstr("queue_timeout_ns: no lane was free for 70000 ns"));
}

TEST_F(BatchQueueTest, TheDeadlineCountsWhenItComesBeforeTheQueueTimeout) {
  RequestProbe& probe = Make(model_);
  probe.request()->queue_timeout = microseconds(70);
  probe.request()->deadline = In(50);
  ASSERT_TRUE(queue().Push(probe.request()).ok());
  EXPECT_EQ(queue().ExpireDue(), In(50));
  clock_.Advance(microseconds(80));
  queue().ExpireDue();
  EXPECT_THAT(std::string(probe.completion().status.message()), HasSubstr("the deadline passed"));
}

TEST_F(BatchQueueTest, ATakenRequestNoLongerExpiresHere) {
  RequestProbe& probe = Make(model_);
  probe.request()->queue_timeout = microseconds(70);
  probe.request()->deadline = In(100);
  ASSERT_TRUE(queue().Push(probe.request()).ok());
  Pull();
  EXPECT_EQ(queue().ExpireDue(), kNever);
  clock_.Advance(microseconds(100));
  EXPECT_EQ(queue().ExpireDue(), kNever);
  EXPECT_FALSE(probe.done());
  lane_.Flush();
  EXPECT_EQ(probe.code(), absl::StatusCode::kOk);
}

// The end.

TEST_F(BatchQueueTest, CloseRefusesNewRequestsAndLetsTheWaitingGoWithoutDelay) {
  options_.limits.max_queue_delay = std::chrono::hours(1);
  const auto a = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre());
  queue().Close();
  RequestProbe& refused = Make(model_);
  EXPECT_TRUE(absl::IsUnavailable(queue().Push(refused.request())));
  EXPECT_NE(refused.request(), nullptr);
  EXPECT_EQ(Rejected(metrics_, Rejection::kDraining), 1);
  DropLast();
  EXPECT_THAT(Pull(), ElementsAre(a));
}

TEST_F(BatchQueueTest, IsFinishedWhenClosedAndEmpty) {
  RequestProbe& probe = Push(model_);
  queue().Close();
  EXPECT_THAT(Pull(), ElementsAre(probe.id()));
  EXPECT_TRUE(queue().TryTake().finished);
}

TEST_F(BatchQueueTest, AbortEndsAllThatWaits) {
  RequestProbe& taken = Push(model_);
  Pull();
  RequestProbe& a = Push(model_);
  RequestProbe& b = Push(model_, 1, 1, In(100), norm::DType::kBFloat16);
  queue().Abort(absl::UnavailableError("drained"));
  EXPECT_EQ(a.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(b.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(taken.done());
  EXPECT_EQ(queue().ExpireDue(), kNever);
}

TEST_F(BatchQueueTest, RunsDoneWithoutItsLock) {
  RequestProbe& cancelled = Push(model_);
  RequestProbe& expired = Push(model_, 1, 1, In(100));
  RequestProbe& aborted = Push(model_);
  std::vector<std::int64_t> seen;
  const auto look = [&] { seen.push_back(queue().waiting_requests()); };
  cancelled.OnDone(look);
  expired.OnDone(look);
  aborted.OnDone(look);
  queue().Cancel(cancelled.id());
  clock_.Advance(microseconds(100));
  queue().ExpireDue();
  queue().Abort(absl::UnavailableError("drained"));
  EXPECT_THAT(seen, ElementsAre(2, 1, 0));
}

// The order of requests: shares of models, and priorities.

TEST_F(BatchQueueTest, ModelsThatHaveHadAsMuchTakeTurns) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(metrics_, "", "other");
  const auto a = Push(model_).id();
  const auto b = Push(other).id();
  const auto c = Push(model_).id();
  EXPECT_THAT(Pull(), ElementsAre(a));
  EXPECT_THAT(Pull(), ElementsAre(b));
  EXPECT_THAT(Pull(), ElementsAre(c));
}

TEST_F(BatchQueueTest, AnothersSingleRequestGoesBeforeAFlood) {
  options_.limits.max_rows = 2;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 9; ++i) Push(model_);
  Pull();
  for (int i = 0; i < 3; ++i) {  // Each time it comes back.
    const auto single = Push(other).id();
    EXPECT_THAT(Pull(), ElementsAre(single)) << "round " << i;
    Pull();
  }
}

TEST_F(BatchQueueTest, AModelThatAlwaysComesAnewDoesNotHoldUpAFlood) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 20; ++i) Push(model_);
  int flood = 0;
  for (int i = 0; i < 20; ++i) {
    // Nothing of it waits after each of its batches; its debt is remembered all the same.
    if (queue().waiting_requests() + flood == 20) Push(other);
    Pull();
    flood += pulled_model_ == model_.get() ? 1 : 0;
  }
  EXPECT_EQ(flood, 10);
}

TEST_F(BatchQueueTest, FloodsShareByBytesAndNotByBatches) {
  options_.limits.max_bytes = 64 << 10;
  const auto other = MakeRowModel(other_metrics_, "max_bytes: 8192", "other");
  for (int i = 0; i < 20; ++i) Push(model_, 1, 16 << 10);  // 64 KiB each.
  for (int i = 0; i < 100; ++i) Push(other, 1, 2 << 10);   // 8 KiB each.
  std::int64_t charged = 0;                                // The one's less the other's.
  for (int i = 0; i < 40; ++i) {
    Pull();
    const VirtualTime charge = Charge({1, pulled_bytes_});
    charged += pulled_model_ == model_.get() ? charge : -charge;
    EXPECT_LE(std::abs(charged), Charge({1, 64 << 10})) << "after " << i;
  }
}

TEST_F(BatchQueueTest, AFloodOfHighPriorityHasTwiceTheShare) {
  options_.limits.max_rows = 1;
  const auto other = MakeRowModel(other_metrics_, "", "other");
  for (int i = 0; i < 30; ++i) {
    Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh);
    Push(other);
  }
  int high = 0;
  for (int i = 0; i < 30; ++i) {
    Pull();
    high += pulled_model_ == model_.get() ? 1 : 0;
  }
  EXPECT_EQ(high, 20);
}

TEST_F(BatchQueueTest, HigherPrioritiesGoFirstWithinAModel) {
  options_.limits.max_rows = 2;
  const auto push = [&](Priority priority) {
    return Push(model_, 1, 1, kNever, norm::DType::kFloat32, priority).id();
  };
  const auto low = push(Priority::kLow);
  const auto normal = push(Priority::kNormal);
  const auto high = push(Priority::kHigh);
  const auto later = push(Priority::kNormal);
  EXPECT_THAT(Pull(), ElementsAre(high, normal));
  EXPECT_THAT(Pull(), ElementsAre(later, low));
}

TEST_F(BatchQueueTest, ALowPriorityStarvesBehindNoFlood) {
  options_.limits.max_rows = 1;
  options_.priority_aging = microseconds(100);
  const auto low = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kLow).id();
  // Twice as many come as are taken.
  int taken = 0;
  for (bool waits = true; waits; ++taken) {
    for (int i = 0; i < 2; ++i) {
      Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh);
    }
    waits = Pull().front() != low;
    clock_.Advance(microseconds(10));
    ASSERT_LT(taken, 100);
  }
  // The requests of the first 200 us, and no others, went before it.
  EXPECT_EQ(taken, 2 * 20 + 1);
}

TEST_F(BatchQueueTest, TheQueueDelayCountsFromTheOldestWhateverItsPriority) {
  options_.limits.max_queue_delay = microseconds(100);
  const auto low = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kLow).id();
  clock_.Advance(microseconds(60));
  const auto high = Push(model_, 1, 1, kNever, norm::DType::kFloat32, Priority::kHigh).id();
  clock_.Advance(microseconds(40));
  EXPECT_THAT(Pull(), ElementsAre(high, low));
}

}  // namespace
}  // namespace normd

// Requests that wait for events, on one thread and a fake clock.

#include "server/batching/event_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_shared_device_events.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class EventWaitsTest : public ::testing::Test {
 protected:
  EventWaitsTest() {
    waits_.PushTo([this](std::unique_ptr<Request>& request) {
      recorded_at_push_.push_back(Ended(EventWaitEnd::kReached));
      if (!push_status_.ok()) return push_status_;
      pushed_.push_back(std::move(request));
      return absl::OkStatus();
    });
  }
  ~EventWaitsTest() override {
    waits_.Abort(absl::UnavailableError("end of test"));
    for (std::unique_ptr<Request>& request : pushed_) {
      Fail(std::move(request), absl::CancelledError("end of test"));
    }
    EXPECT_EQ(metrics_.event_waiting, 0);
    for (const auto& probe : probes_) EXPECT_EQ(probe->done_calls(), 1);
  }

  RequestProbe& Make(const std::string& handle, std::uint64_t holder = 0) {
    probes_.push_back(std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 1, 1}));
    Request& request = *probes_.back()->request();
    request.event = std::make_unique<AwaitedEvent>(AwaitedEvent{0, handle});
    request.holder = holder;
    return *probes_.back();
  }
  RequestProbe& Hold(const std::string& handle, std::uint64_t holder = 0) {
    return HoldIt(Make(handle, holder));
  }
  RequestProbe& HoldIt(RequestProbe& probe) {
    EXPECT_TRUE(waits_.Hold(probe.request()).ok());
    EXPECT_EQ(probe.request(), nullptr);
    return probe;
  }
  std::string Refusal(RequestProbe& probe, Code code) {
    const absl::Status status = waits_.Hold(probe.request());
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(probe.request(), nullptr) << "it stays with the caller";
    probes_.pop_back();
    return std::string(status.message());
  }
  std::string ErrorOf(const RequestProbe& probe, Code code) {
    EXPECT_EQ(probe.code(), code);
    return std::string(probe.completion().status.message());
  }
  // Rounds until there is nothing to do at once.
  TimePoint PollAll() {
    TimePoint next = waits_.Poll();
    while (next <= clock_.Now()) next = waits_.Poll();
    return next;
  }
  std::int64_t Ended(EventWaitEnd end) {
    return metrics_.event_waits[static_cast<std::size_t>(end)];
  }

  static EventWaitLimits Limits() {
    EventWaitLimits limits;
    limits.max_requests = 5;
    limits.max_holder_requests = 3;
    limits.max_wait = seconds(10);
    return limits;
  }

  FakeClock clock_;
  CountingModelMetrics model_metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(model_metrics_);
  testing::FakeSharedDeviceEvents events_;
  CountingRegionMetrics metrics_;
  absl::Status push_status_;
  std::vector<std::unique_ptr<Request>> pushed_;
  std::vector<std::int64_t> recorded_at_push_;  // The waits that counted as reached by then.
  EventWaits waits_{events_, Limits(), metrics_, clock_};
  std::vector<std::unique_ptr<RequestProbe>> probes_;
};

TEST_F(EventWaitsTest, GoesOnWhenItsEventIsReachedAndNotBefore) {
  const std::string handle = events_.Make();
  Hold(handle);
  EXPECT_EQ(waits_.waiting_requests(), 1);
  EXPECT_EQ(metrics_.event_waiting, 1);
  for (int i = 0; i < 100; ++i) {
    const TimePoint next = PollAll();
    EXPECT_TRUE(pushed_.empty());
    ASSERT_NE(next, kNever);
    clock_.Advance(next - clock_.Now());
  }
  events_.Reach(handle);
  PollAll();
  ASSERT_EQ(pushed_.size(), 1U);
  EXPECT_EQ(pushed_[0]->event, nullptr);
  EXPECT_FALSE(pushed_[0]->may_run_inline) << "others wait for the thread";
  EXPECT_GT(pushed_[0]->stages[Stage::kQueue], Duration(0));
  EXPECT_EQ(waits_.waiting_requests(), 0);
  EXPECT_EQ(Ended(EventWaitEnd::kReached), 1);
}

// The push may lead to the response, whose client may look at the counters.
TEST_F(EventWaitsTest, CountsAsReachedBeforeThePush) {
  for (int i = 0; i < 2; ++i) {
    const std::string handle = events_.Make();
    events_.Reach(handle);
    Hold(handle);
    PollAll();
  }
  EXPECT_THAT(recorded_at_push_, ::testing::ElementsAre(1, 2));
}

// An event is asked for at once, and then less and less often: late by an eighth at most, from
// 20 us up to 1 ms.
TEST_F(EventWaitsTest, AsksSoonAtFirstAndNeverLaterThanAnEighth) {
  const std::string handle = events_.Make();
  const TimePoint begin = clock_.Now();
  Hold(handle);
  int asked = 0;
  while (clock_.Now() - begin < seconds(1)) {
    const TimePoint next = PollAll();
    EXPECT_EQ(events_.asked(handle), ++asked);
    const Duration waited = clock_.Now() - begin;
    EXPECT_LE(
        next - clock_.Now(),
        std::min<Duration>(std::max<Duration>(waited / 8, microseconds(20)), milliseconds(1)));
    clock_.Advance(next - clock_.Now());
  }
  EXPECT_LT(asked, 1200);
}

TEST_F(EventWaitsTest, OneThatIsNeverReachedDelaysNobody) {
  const std::string never = events_.Make();
  const std::string soon = events_.Make();
  Hold(never, 1);
  PollAll();
  events_.Reach(soon);
  Hold(soon, 2);
  PollAll();
  ASSERT_EQ(pushed_.size(), 1U);
  EXPECT_EQ(pushed_[0]->holder, 2U);
}

TEST_F(EventWaitsTest, EndsAtItsDeadlineItsQueueTimeoutOrTheLimit) {
  const std::string handle = events_.Make();
  RequestProbe& by_deadline = Make(handle);
  by_deadline.request()->deadline = clock_.Now() + milliseconds(3);
  RequestProbe& by_timeout = Make(handle);
  by_timeout.request()->queue_timeout = milliseconds(5);
  RequestProbe& by_limit = Make(handle);
  for (RequestProbe* probe : {&by_deadline, &by_timeout, &by_limit}) HoldIt(*probe);
  for (int ms = 0; ms < 10'001; ++ms) {
    const TimePoint next = PollAll();
    if (waits_.waiting_requests() > 0) {
      EXPECT_LE(next, clock_.Now() + milliseconds(1));
    }
    EXPECT_EQ(by_deadline.done(), ms >= 3);
    EXPECT_EQ(by_timeout.done(), ms >= 5);
    EXPECT_EQ(by_limit.done(), ms >= 10'000);
    clock_.Advance(milliseconds(1));
  }
  EXPECT_THAT(ErrorOf(by_deadline, Code::kDeadlineExceeded),
              HasSubstr("the deadline passed while the request waited for the event"));
  EXPECT_THAT(ErrorOf(by_timeout, Code::kDeadlineExceeded),
              HasSubstr("queue_timeout_ns: the event of event_handle was not reached for 5000000"));
  EXPECT_THAT(ErrorOf(by_limit, Code::kDeadlineExceeded),
              HasSubstr("event_handle: the event was not reached for 10000 ms"));
  EXPECT_EQ(Ended(EventWaitEnd::kExpired), 3);
}

TEST_F(EventWaitsTest, WhatTheEventHasTakenOfTheQueueTimeoutIsKeptBesideIt) {
  const std::string handle = events_.Make();
  RequestProbe& probe = Make(handle);
  probe.request()->queue_timeout = milliseconds(5);
  HoldIt(probe);
  PollAll();
  clock_.Advance(milliseconds(2));
  events_.Reach(handle);
  PollAll();
  ASSERT_EQ(pushed_.size(), 1U);
  EXPECT_EQ(pushed_[0]->queue_timeout, milliseconds(5));
  EXPECT_EQ(pushed_[0]->event_wait, milliseconds(2));
  EXPECT_EQ(pushed_[0]->QueueTimeLeft(), milliseconds(3));
  EXPECT_EQ(pushed_[0]->stages[Stage::kQueue], milliseconds(2));
}

TEST_F(EventWaitsTest, IsCancelledWhereverItIs) {
  const std::string handle = events_.Make();
  RequestProbe& unopened = Hold(handle);
  waits_.Cancel(unopened.id());
  EXPECT_EQ(unopened.code(), Code::kCancelled);
  RequestProbe& waiting = Hold(handle);
  PollAll();
  waits_.Cancel(waiting.id() + 1000);
  EXPECT_FALSE(waiting.done());
  waits_.Cancel(waiting.id());
  EXPECT_EQ(waiting.code(), Code::kCancelled);
  // While the driver is asked.
  RequestProbe& asked = Hold(handle);
  events_.OnAsked(handle, [this, id = asked.id()] { waits_.Cancel(id); });
  events_.Reach(handle);
  PollAll();
  EXPECT_EQ(asked.code(), Code::kCancelled);
  EXPECT_TRUE(pushed_.empty());
  EXPECT_EQ(Ended(EventWaitEnd::kCancelled), 3);
  // Before it came.
  RequestProbe& before = Make(handle);
  before.SetCancelled();
  HoldIt(before);
  EXPECT_EQ(before.code(), Code::kCancelled);
}

TEST_F(EventWaitsTest, AbortEndsAllAndTakesNoMore) {
  const std::string handle = events_.Make();
  std::vector<RequestProbe*> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(&Hold(handle));
  PollAll();
  waits_.Abort(absl::UnavailableError("the server is stopping"));
  for (const RequestProbe* probe : waiting) EXPECT_EQ(probe->code(), Code::kUnavailable);
  EXPECT_THAT(Refusal(Make(handle), Code::kUnavailable), HasSubstr("shutting down"));
  EXPECT_EQ(model_metrics_.rejections(Rejection::kDraining), 1);
}

TEST_F(EventWaitsTest, CloseTakesNoMoreAndHandsOnWhatWaits) {
  const std::string handle = events_.Make();
  Hold(handle);
  waits_.Close();
  EXPECT_THAT(Refusal(Make(handle), Code::kUnavailable), HasSubstr("shutting down"));
  EXPECT_EQ(model_metrics_.rejections(Rejection::kDraining), 1);
  events_.Reach(handle);
  PollAll();
  EXPECT_EQ(pushed_.size(), 1U);
}

TEST_F(EventWaitsTest, OfEachHolderAndInAllABoundedNumberWaits) {
  const std::string handle = events_.Make();
  RequestProbe& first = Hold(handle, 7);
  for (int i = 0; i < 2; ++i) Hold(handle, 7);
  EXPECT_THAT(Refusal(Make(handle, 7), Code::kResourceExhausted),
              HasSubstr("event_handle: 3 requests of this client's wait"));
  for (int i = 0; i < 2; ++i) Hold(handle, 8);
  EXPECT_THAT(Refusal(Make(handle, 9), Code::kResourceExhausted),
              HasSubstr("event_handle: 5 requests wait for events"));
  EXPECT_EQ(Ended(EventWaitEnd::kRefused), 2);
  EXPECT_EQ(model_metrics_.rejections(Rejection::kEventWaits), 2);
  waits_.Cancel(first.id());
  Hold(handle, 7);
  EXPECT_EQ(waits_.waiting_requests(), 5);
}

TEST_F(EventWaitsTest, GarbageAndTheHandlesOfTheDeadAreTheErrorOfTheirRequestAlone) {
  const std::string good = events_.Make();
  const std::string dead = events_.Make();
  events_.EndClient(dead);
  RequestProbe& of_garbage = Hold(std::string(kEventHandleBytes, '?'));
  RequestProbe& of_dead = Hold(dead);
  Hold(good);
  events_.Reach(good);
  PollAll();
  EXPECT_THAT(ErrorOf(of_garbage, Code::kInvalidArgument), HasSubstr("event_handle: "));
  EXPECT_THAT(ErrorOf(of_dead, Code::kInvalidArgument), HasSubstr("event_handle: "));
  EXPECT_EQ(pushed_.size(), 1U);
  EXPECT_EQ(Ended(EventWaitEnd::kFailed), 2);
}

TEST_F(EventWaitsTest, AClientThatDiesWhileItsRequestWaitsEndsWithTheLimit) {
  const std::string handle = events_.Make();
  RequestProbe& probe = Hold(handle);
  PollAll();
  events_.EndClient(handle);
  clock_.Advance(seconds(10));
  PollAll();
  EXPECT_EQ(probe.code(), Code::kDeadlineExceeded);
}

TEST_F(EventWaitsTest, AFailedDeviceEndsTheRequest) {
  const std::string handle = events_.Make();
  RequestProbe& probe = Hold(handle);
  PollAll();
  events_.Fail(handle, absl::InternalError("event_handle: the device is gone"));
  clock_.Advance(milliseconds(1));
  PollAll();
  EXPECT_THAT(ErrorOf(probe, Code::kInternal), HasSubstr("the device is gone"));
}

TEST_F(EventWaitsTest, WhatTheQueueRefusesEndsWithItsError) {
  const std::string handle = events_.Make();
  RequestProbe& probe = Hold(handle);
  push_status_ = absl::ResourceExhaustedError("the queue is full");
  events_.Reach(handle);
  PollAll();
  EXPECT_THAT(ErrorOf(probe, Code::kResourceExhausted), HasSubstr("the queue is full"));
}

TEST_F(EventWaitsTest, OpensOneEventInARound) {
  for (int i = 0; i < 4; ++i) Hold(events_.Make(), static_cast<std::uint64_t>(i));
  for (int i = 1; i <= 4; ++i) {
    waits_.Poll();
    EXPECT_EQ(events_.opens(), i);
  }
}

TEST_F(EventWaitsTest, AnEventIsClosedAsSoonAsItsRequestNoLongerWaits) {
  const std::string reached = events_.Make();
  const std::string cancelled = events_.Make();
  Hold(reached);
  RequestProbe& probe = Hold(cancelled);
  PollAll();
  EXPECT_EQ(events_.opened(), 2);
  events_.Reach(reached);
  clock_.Advance(milliseconds(1));
  PollAll();
  EXPECT_EQ(events_.opened(), 1);
  waits_.Cancel(probe.id());
  EXPECT_EQ(events_.opened(), 1) << "not on the thread of whoever cancels";
  EXPECT_EQ(PollAll(), kNever);
  EXPECT_EQ(events_.opened(), 0);
}

// A client destroys its event once the response is there, and makes another, to which the driver
// gives the same handle.
TEST_F(EventWaitsTest, AnotherEventOfTheSameHandleIsAskedForItself) {
  const std::string handle = events_.Make();
  Hold(handle);
  events_.Reach(handle);
  PollAll();
  ASSERT_EQ(pushed_.size(), 1U);
  events_.Remake(handle);
  Hold(handle);
  PollAll();
  EXPECT_EQ(pushed_.size(), 1U) << "the new event is not reached";
  events_.Reach(handle);
  clock_.Advance(milliseconds(1));
  PollAll();
  EXPECT_EQ(pushed_.size(), 2U);
}

// Likewise while a request still waits for the first one, as its cancellation is on its way.
TEST_F(EventWaitsTest, RequestsDoNotShareAnEvent) {
  const std::string handle = events_.Make();
  RequestProbe& first = Hold(handle);
  PollAll();
  events_.Remake(handle);
  RequestProbe& second = Hold(handle);
  PollAll();
  waits_.Cancel(first.id());
  PollAll();
  EXPECT_EQ(waits_.waiting_requests(), 1);
  EXPECT_FALSE(second.done());
  EXPECT_EQ(events_.opens(), 2);
}

// Whatever comes while a round is at its end, which here is that another event is closed.
TEST_F(EventWaitsTest, ARoundThatIsAtItsEndLeavesNoEventOpen) {
  const std::string closed = events_.Make();
  const std::string late = events_.Make();
  RequestProbe& first = Hold(closed);
  RequestProbe& second = Hold(late);
  PollAll();
  events_.OnClosed(closed, [this, id = second.id()] { waits_.Cancel(id); });
  waits_.Cancel(first.id());
  EXPECT_EQ(PollAll(), kNever);
  EXPECT_EQ(second.code(), Code::kCancelled);
  EXPECT_EQ(events_.opened(), 0);
}

TEST_F(EventWaitsTest, TenThousandHandlesLeaveNothing) {
  for (int i = 0; i < 10'000; ++i) {
    const std::string handle = events_.Make();
    RequestProbe& probe = Hold(handle);
    if (i % 3 != 0) events_.Reach(handle);
    PollAll();
    if (i % 3 == 0) waits_.Cancel(probe.id());
  }
  EXPECT_EQ(events_.opens(), 10'000);
  EXPECT_LE(events_.most_opened(), 2);
  EXPECT_EQ(PollAll(), kNever);
  EXPECT_EQ(events_.opened(), 0);
}

}  // namespace
}  // namespace normd

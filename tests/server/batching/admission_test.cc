#include "server/batching/admission.h"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/callers/callers.h"
#include "tests/support/metric_value.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

using testing::HasSubstr;

class AdmissionTest : public testing::Test {
 protected:
  // The connection "ipv4:a:1" is one of the peer "ipv4:a".
  Caller* CallerOf(const std::string& connection) {
    std::shared_ptr<Caller>& caller = held_callers_[connection];
    if (caller == nullptr) caller = callers_.Find(connection);
    return caller.get();
  }
  // Whether nothing is anybody's.
  bool NobodyHoldsAnything() const {
    for (const auto& [name, caller] : held_callers_) {
      for (Holding* holding : {&caller->holding, &caller->peer->holding}) {
        for (const auto& amount : holding->amounts) {
          if (amount != 0) return false;
        }
      }
    }
    return true;
  }

  Callers callers_;
  std::map<std::string, std::shared_ptr<Caller>> held_callers_;
  Metrics metrics_;
  ModelMetrics model_;
  Admission admission_{{.max_inflight_bytes = 100, .max_inflight_requests = 2}, metrics_};
};

TEST_F(AdmissionTest, LeasesCountUntilTheyEnd) {
  {
    const auto a = admission_.Admit(60, model_);
    ASSERT_TRUE(a.ok());
    const auto b = admission_.Admit(40, model_);
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(admission_.inflight_requests(), 2);
    EXPECT_EQ(admission_.inflight_bytes(), 100);
    EXPECT_EQ(MetricValue(metrics_, families::kInflightBytes), 100);
  }
  EXPECT_EQ(admission_.inflight_requests(), 0);
  EXPECT_EQ(admission_.inflight_bytes(), 0);
  EXPECT_EQ(MetricValue(metrics_, families::kInflightBytes), 0);
}

TEST_F(AdmissionTest, MovingALeaseReturnsItOnce) {
  auto a = admission_.Admit(60, model_);
  ASSERT_TRUE(a.ok());
  Admission::Lease moved = *std::move(a);
  EXPECT_EQ(admission_.inflight_bytes(), 60);
  auto b = admission_.Admit(30, model_);
  ASSERT_TRUE(b.ok());
  moved = *std::move(b);  // Ends the first.
  EXPECT_EQ(admission_.inflight_bytes(), 30);
  EXPECT_EQ(admission_.inflight_requests(), 1);
  moved = Admission::Lease();
  EXPECT_EQ(admission_.inflight_bytes(), 0);
}

TEST_F(AdmissionTest, NamesTheBudgetThatIsFull) {
  const auto held = admission_.Admit(60, model_);
  const absl::Status bytes = admission_.Admit(41, model_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(bytes));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("bytes in flight: wanted 41, 40 of 100"));
  EXPECT_EQ(Rejected(model_, Rejection::kInflightBytes), 1);
  EXPECT_EQ(admission_.inflight_requests(), 1) << "a refusal takes nothing";

  const auto second = admission_.Admit(0, model_);
  const absl::Status requests = admission_.Admit(0, model_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(requests));
  EXPECT_THAT(std::string(requests.message()), HasSubstr("requests in flight"));
  EXPECT_EQ(Rejected(model_, Rejection::kInflightRequests), 1);
}

TEST_F(AdmissionTest, WhatCanNeverFitIsTheClientsMistake) {
  const absl::Status status = admission_.Admit(101, model_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 101 bytes, wanted at most"));
}

// Everything that one holder can do to another's room.
TEST_F(AdmissionTest, HoweverManyHoldersTakeWhatTheyCanSomethingStaysFree) {
  for (const double share : {0.25, 0.5, 0.75, 0.9}) {
    for (const std::int64_t step : {1, 7, 100}) {
      Admission admission({.max_inflight_bytes = 100000,
                           .max_inflight_requests = 1 << 20,
                           .max_connection_share = share},
                          metrics_);
      std::vector<Admission::Lease> held;
      for (int holders = 1; holders <= 20; ++holders) {
        const std::string name = "holder " + std::to_string(holders);
        std::int64_t got = 0;
        for (;;) {
          auto lease = admission.Admit(step, model_, Needs::kLane, CallerOf(name));
          if (!lease.ok()) {
            EXPECT_TRUE(absl::IsResourceExhausted(lease.status()));
            EXPECT_THAT(std::string(lease.status().message()), HasSubstr("bytes in flight"));
            break;
          }
          held.push_back(*std::move(lease));
          got += step;
        }
        const std::int64_t free = 100000 - admission.inflight_bytes();
        EXPECT_TRUE(got > 0 || share * static_cast<double>(free) < static_cast<double>(step))
            << holders;
        EXPECT_LE(static_cast<double>(got), share * static_cast<double>(got + free) + 1);
        EXPECT_GT(free, 0);
      }
      held.clear();
      EXPECT_EQ(admission.inflight_bytes(), 0);
      EXPECT_TRUE(NobodyHoldsAnything());
    }
  }
}

TEST_F(AdmissionTest, AHolderWithNothingInsideMayExceedItsShareOnce) {
  constexpr std::int64_t kBudget = 800;
  Admission admission({.max_inflight_bytes = kBudget,
                       .max_inflight_requests = 100,
                       .max_connection_share = 0.5,
                       .max_peer_share = 0.75},
                      metrics_);
  Caller* const a = CallerOf("ipv4:a:1");
  Caller* const other = CallerOf("ipv4:b:1");
  // Alone: the whole.
  EXPECT_TRUE(admission.Admit(kBudget, model_, Needs::kLane, a).ok());
  const auto small = admission.Admit(1, model_, Needs::kLane, other);
  // In company an eighth stays free.
  EXPECT_FALSE(admission.Admit(700, model_, Needs::kLane, a).ok());
  const auto large = admission.Admit(699, model_, Needs::kLane, a);
  EXPECT_TRUE(large.ok());
  EXPECT_FALSE(admission.Admit(60, model_, Needs::kLane, a).ok()) << "and no more of it";
  EXPECT_FALSE(admission.Admit(40, model_, Needs::kLane, CallerOf("ipv4:a:2")).ok())
      << "of its peer";
  EXPECT_TRUE(admission.Admit(40, model_, Needs::kLane, other).ok());
  EXPECT_EQ(Rejected(model_, Rejection::kConnectionShare), 2);
  EXPECT_EQ(Rejected(model_, Rejection::kPeerShare), 1);
}

TEST_F(AdmissionTest, SharesBoundRequestsToo) {
  Admission admission(
      {.max_inflight_bytes = 100, .max_inflight_requests = 8, .max_connection_share = 0.5},
      metrics_);
  std::vector<Admission::Lease> held;
  for (int i = 0; i < 4; ++i) {
    auto lease = admission.Admit(0, model_, Needs::kLane, CallerOf("a"));
    ASSERT_TRUE(lease.ok()) << i;
    held.push_back(*std::move(lease));
  }
  EXPECT_FALSE(admission.Admit(0, model_, Needs::kLane, CallerOf("a")).ok());
  EXPECT_TRUE(admission.Admit(0, model_, Needs::kLane, CallerOf("b")).ok());
}

TEST_F(AdmissionTest, AConnectionsCallsAreBoundedByWhatIsInsideAndNeedsALane) {
  Admission admission(
      {.max_inflight_bytes = 100, .max_inflight_requests = 100, .max_connection_calls = 2},
      metrics_);
  Caller* const a = CallerOf("ipv4:a:1");
  auto first = admission.Admit(1, model_, Needs::kLane, a);
  const auto stream = admission.AdmitStream(1, model_, a);
  ASSERT_TRUE(first.ok() && stream.ok());
  const auto refused = admission.Admit(1, model_, Needs::kLane, a);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--max_connection_calls"));
  EXPECT_FALSE(admission.AdmitStream(1, model_, a).ok());
  EXPECT_EQ(Rejected(model_, Rejection::kConnectionCalls), 2);
  EXPECT_TRUE(admission.Admit(1, model_, Needs::kOpenServer, a).ok()) << "a control call";
  const auto other = admission.Admit(1, model_, Needs::kLane, CallerOf("ipv4:a:2"));
  ASSERT_TRUE(other.ok());
  first = Admission::Lease();
  EXPECT_TRUE(admission.Admit(1, model_, Needs::kLane, a).ok());
  // One that the budgets refuse counts no longer.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(std::string(admission.Admit(100, model_, Needs::kLane, a).status().message()),
                HasSubstr("bytes in flight"));
  }
  EXPECT_EQ(a->calls, 1);
  // All connections of unix sockets are one caller.
  std::vector<Admission::Lease> of_unix;
  for (int i = 0; i < 10; ++i) {
    auto lease = admission.Admit(1, model_, Needs::kLane, CallerOf("unix:"));
    ASSERT_TRUE(lease.ok()) << lease.status();
    of_unix.push_back(*std::move(lease));
  }
}

TEST_F(AdmissionTest, TakesMoreForALeaseWithinTheBudgetsAndShares) {
  Admission admission(
      {.max_inflight_bytes = 100, .max_inflight_requests = 100, .max_connection_share = 0.5},
      metrics_);
  Caller* const a = CallerOf("ipv4:a:1");
  auto lease = admission.Admit(0, model_, Needs::kOpenServer, a);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(admission.TakeMore(*lease, 20, model_).ok());
  EXPECT_TRUE(admission.TakeMore(*lease, 30, model_).ok());
  EXPECT_EQ(lease->bytes(), 50);
  auto other = admission.Admit(38, model_, Needs::kOpenServer, CallerOf("ipv4:b:1"));
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(admission.TakeMore(*lease, 1, model_)));
  lease = Admission::Lease();
  other = Admission::Lease();
  EXPECT_EQ(admission.inflight_bytes(), 0);
  EXPECT_TRUE(NobodyHoldsAnything());
}

// What a lease has already is its own: a request may take it in steps.
TEST_F(AdmissionTest, ALeaseThatGrowsIsJudgedAsOneRequest) {
  Admission admission(
      {.max_inflight_bytes = 800, .max_inflight_requests = 100, .max_connection_share = 0.5},
      metrics_);
  Caller* const a = CallerOf("ipv4:a:1");
  auto lease = admission.Admit(300, model_, Needs::kLane, a);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(admission.TakeMore(*lease, 200, model_).ok()) << "nobody else is inside";
  const auto small = admission.Admit(1, model_, Needs::kLane, CallerOf("ipv4:b:1"));
  EXPECT_TRUE(admission.TakeMore(*lease, 199, model_).ok()) << "an eighth stays free";
  EXPECT_TRUE(absl::IsResourceExhausted(admission.TakeMore(*lease, 1, model_)));
}

TEST_F(AdmissionTest, WhatALeaseCanNeverGrowToIsTheClientsMistake) {
  auto lease = admission_.Admit(60, model_);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(admission_.TakeMore(*lease, 41, model_)));
  lease = Admission::Lease();

  Caller* const a = CallerOf("ipv4:a:1");
  a->peer->holding.SetLimit(Resource::kBytes, 50);
  const CallAccount account(a, a->peer.get());
  lease = admission_.Admit(40, model_, Needs::kLane, account);
  ASSERT_TRUE(lease.ok());
  const absl::Status alone = admission_.TakeMore(*lease, 11, model_);
  EXPECT_TRUE(absl::IsInvalidArgument(alone));
  EXPECT_EQ(alone.message(),
            "bytes in flight: wanted 11 more, this identity has 40 and may have 50");
  lease = Admission::Lease();
  lease = admission_.Admit(40, model_, Needs::kLane, account);
  EXPECT_TRUE(
      absl::IsResourceExhausted(admission_.Admit(11, model_, Needs::kLane, account).status()));
}

struct CountingWaiter : Admission::Waiter {
  void OnRoom(bool overdraft) override { ++(overdraft ? overdrafts : calls); }
  int calls = 0;
  int overdrafts = 0;
};

TEST_F(AdmissionTest, AStreamWaitsForRoomAndOneOfThoseThatWaitOverdraws) {
  Admission admission(
      {.max_inflight_bytes = 100, .max_inflight_requests = 10, .overdraft_bytes = 50}, metrics_);
  auto first = admission.AdmitStream(10, model_);
  auto second = admission.AdmitStream(10, model_);
  auto third = admission.AdmitStream(10, model_);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(admission.inflight_bytes(), 0);
  EXPECT_TRUE(admission.MayGrow(*first));
  first->Add(50);
  EXPECT_FALSE(admission.MayGrow(*second)) << "the rest is for the one that overdraws";

  const auto a = std::make_shared<CountingWaiter>();
  const auto b = std::make_shared<CountingWaiter>();
  admission.AwaitRoom(*second, 10, a);
  EXPECT_EQ(a->overdrafts, 1) << "nobody else would ever give way";
  admission.AwaitRoom(*third, 10, b);
  EXPECT_EQ(b->calls + b->overdrafts, 0);
  second->Add(40);
  second->Return(40);
  EXPECT_EQ(b->calls + b->overdrafts, 0);
  admission.EndOverdraft(*second);
  EXPECT_EQ(b->overdrafts, 1);
  admission.EndOverdraft(*third);

  admission.AwaitRoom(*second, 10, a);
  EXPECT_EQ(a->overdrafts, 2);
  admission.AwaitRoom(*third, 10, b);
  first->Return(50);
  EXPECT_EQ(b->calls, 1) << "there is room";
  EXPECT_EQ(admission.waiting(), 0);
}

TEST_F(AdmissionTest, AnEndedLeaseWaitsNoMoreAndItsOverdraftPassesOn) {
  Admission admission({.max_inflight_bytes = 100, .max_inflight_requests = 10}, metrics_);
  const auto held = admission.Admit(100, model_);
  const auto waiter = std::make_shared<CountingWaiter>();
  auto last = admission.AdmitStream(10, model_);
  {
    auto first = admission.AdmitStream(10, model_);
    auto second = admission.AdmitStream(10, model_);
    admission.AwaitRoom(*first, 10, waiter);
    admission.AwaitRoom(*second, 10, waiter);
    admission.AwaitRoom(*last, 10, waiter);
    EXPECT_EQ(waiter->overdrafts, 1);
  }
  EXPECT_EQ(admission.waiting(), 0);
  EXPECT_GE(waiter->overdrafts, 2) << "the last one's turn has come";
}

// One peer has many streams and another has one: each peer has its turn.
TEST_F(AdmissionTest, PeersOverdrawInTurn) {
  Admission admission({.max_inflight_bytes = 100,
                       .max_inflight_requests = 100,
                       .max_connection_share = 0.9,
                       .max_peer_share = 0.9},
                      metrics_);
  const auto held = admission.Admit(100, model_);
  std::vector<Admission::Lease> many;
  many.reserve(20);
  const auto theirs = std::make_shared<CountingWaiter>();
  for (int i = 0; i < 20; ++i) {
    many.push_back(*admission.AdmitStream(1, model_, CallerOf("ipv4:a:1")));
    admission.AwaitRoom(many.back(), 1, theirs);
  }
  auto mine = admission.AdmitStream(1, model_, CallerOf("ipv4:b:1"));
  const auto waiter = std::make_shared<CountingWaiter>();
  admission.AwaitRoom(*mine, 1, waiter);
  EXPECT_EQ(theirs->overdrafts, 1);
  admission.EndOverdraft(many.front());
  EXPECT_EQ(waiter->overdrafts, 1) << "after one of theirs, not twenty";
  many.clear();
}

TEST_F(AdmissionTest, RefusesWhileNotReadyAndAfterClose) {
  admission_.SetReady(false);
  EXPECT_TRUE(absl::IsUnavailable(admission_.Admit(1, model_).status()));
  EXPECT_EQ(Rejected(model_, Rejection::kNotReady), 1);
  admission_.SetReady(true);
  EXPECT_TRUE(admission_.Admit(1, model_).ok());
  admission_.Close();
  EXPECT_TRUE(absl::IsUnavailable(admission_.Admit(1, model_).status()));
  EXPECT_TRUE(absl::IsUnavailable(admission_.Admit(1, model_, Needs::kOpenServer).status()));
  EXPECT_EQ(Rejected(model_, Rejection::kDraining), 2);
  EXPECT_TRUE(admission_.Admit(1, model_, Needs::kRoom).ok());
}

TEST_F(AdmissionTest, NeverExceedsItsBudgetsUnderContentionAndLeaksNothing) {
  constexpr int kThreads = 4;
  constexpr int kTries = 20000;
  std::atomic<bool> over{false};
  std::atomic<int> admitted{0};
  RunThreads(kThreads, [&](int t) {
    std::optional<Admission::Lease> kept;  // Lives across iterations, to keep the budget tight.
    for (int i = 0; i < kTries; ++i) {
      auto lease = admission_.Admit((i * 7 + t * 13) % 90, model_);
      if (admission_.inflight_bytes() > 100 || admission_.inflight_requests() > 2) over = true;
      if (!lease.ok()) {
        kept.reset();
        continue;
      }
      ++admitted;
      kept = *std::move(lease);
    }
  });
  EXPECT_FALSE(over);
  EXPECT_GT(admitted, 0);
  EXPECT_EQ(admission_.inflight_bytes(), 0);
  EXPECT_EQ(admission_.inflight_requests(), 0);
  EXPECT_EQ(MetricValue(metrics_, families::kInflightBytes), 0);
}

}  // namespace
}  // namespace normd

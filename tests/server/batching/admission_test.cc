#include "server/batching/admission.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/counting_metrics.h"

namespace normd {
namespace {

using testing::HasSubstr;

class AdmissionTest : public testing::Test {
 protected:
  CountingMetrics metrics_;
  CountingModelMetrics model_;
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
    EXPECT_EQ(metrics_.inflight_bytes, 100);
  }
  EXPECT_EQ(admission_.inflight_requests(), 0);
  EXPECT_EQ(admission_.inflight_bytes(), 0);
  EXPECT_EQ(metrics_.inflight_bytes, 0);
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
  EXPECT_EQ(model_.rejections(Rejection::kInflightBytes), 1);
  EXPECT_EQ(admission_.inflight_requests(), 1) << "a refusal takes nothing";

  const auto second = admission_.Admit(0, model_);
  const absl::Status requests = admission_.Admit(0, model_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(requests));
  EXPECT_THAT(std::string(requests.message()), HasSubstr("requests in flight"));
  EXPECT_EQ(model_.rejections(Rejection::kInflightRequests), 1);
}

TEST_F(AdmissionTest, WhatCanNeverFitIsTheClientsMistake) {
  const absl::Status status = admission_.Admit(101, model_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 101 bytes, wanted at most"));
}

TEST_F(AdmissionTest, RefusesWhileNotReadyAndAfterClose) {
  admission_.SetReady(false);
  EXPECT_TRUE(absl::IsUnavailable(admission_.Admit(1, model_).status()));
  EXPECT_EQ(model_.rejections(Rejection::kNotReady), 1);
  admission_.SetReady(true);
  EXPECT_TRUE(admission_.Admit(1, model_).ok());
  admission_.Close();
  EXPECT_TRUE(absl::IsUnavailable(admission_.Admit(1, model_).status()));
  EXPECT_EQ(model_.rejections(Rejection::kDraining), 1);
}

TEST_F(AdmissionTest, NeverExceedsItsBudgetsUnderContentionAndLeaksNothing) {
  constexpr int kThreads = 4;
  constexpr int kTries = 20000;
  std::atomic<bool> over{false};
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
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
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_GT(admitted, 0);
  EXPECT_EQ(admission_.inflight_bytes(), 0);
  EXPECT_EQ(admission_.inflight_requests(), 0);
  EXPECT_EQ(metrics_.inflight_bytes, 0);
}

}  // namespace
}  // namespace normd

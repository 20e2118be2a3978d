#include "client/fleet/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/cord.h"

namespace normd::client {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

absl::Status WithHint(absl::Status status, const char* ms) {
  status.SetPayload("grpc-retry-pushback-ms", absl::Cord(ms));
  return status;
}

TEST(MayRetryTest, RetriesUnavailableAtOnceAndThenWithAGrowingPause) {
  const RetryPolicy policy;
  const absl::Status gone = absl::UnavailableError("gone");
  Duration delay{-1};
  ASSERT_TRUE(MayRetry(policy, gone, 1, 1, delay));
  EXPECT_EQ(delay, Duration{0});
  Duration before{0};
  for (int attempts = 2; attempts < policy.max_attempts; ++attempts) {
    ASSERT_TRUE(MayRetry(policy, gone, attempts, 1, delay));
    EXPECT_GT(delay, before);
    before = delay;
  }
  ASSERT_TRUE(MayRetry(policy, gone, 2, 0, delay));
  EXPECT_EQ(delay, milliseconds(10));
}

TEST(MayRetryTest, RetriesUnavailableAsItsHintSays) {
  Duration delay{0};
  const absl::Status nobody = WithHint(absl::UnavailableError("no healthy replica"), "500");
  ASSERT_TRUE(MayRetry(RetryPolicy(), nobody, 1, 0, delay));
  EXPECT_EQ(delay, milliseconds(500));
}

TEST(MayRetryTest, PausesNoLongerThanTheLongest) {
  RetryPolicy policy;
  policy.max_attempts = 100;
  Duration delay{0};
  ASSERT_TRUE(MayRetry(policy, absl::UnavailableError(""), 90, 1, delay));
  EXPECT_EQ(delay, policy.max_backoff);
}

TEST(MayRetryTest, EndsWithTheLastAttempt) {
  Duration delay{0};
  EXPECT_FALSE(MayRetry(RetryPolicy(), absl::UnavailableError(""), 5, 0, delay));
}

TEST(MayRetryTest, RetriesResourceExhaustedAsItsHintSaysAndNeverWithoutOne) {
  Duration delay{0};
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(MayRetry(RetryPolicy(), full, 1, 0, delay));
  ASSERT_TRUE(MayRetry(RetryPolicy(), WithHint(full, "100"), 1, 0, delay));
  EXPECT_EQ(delay, milliseconds(100));
  ASSERT_TRUE(MayRetry(RetryPolicy(), WithHint(full, "100"), 1, 1, delay));
  EXPECT_EQ(delay, milliseconds(150));
}

TEST(MayRetryTest, RetriesInternalAtOnceWhereTheServerSaysSo) {
  Duration delay{-1};
  const absl::Status failed = absl::InternalError("failed");
  EXPECT_FALSE(MayRetry(RetryPolicy(), failed, 1, 1, delay));
  ASSERT_TRUE(MayRetry(RetryPolicy(), WithHint(failed, "0"), 4, 1, delay));
  EXPECT_EQ(delay, Duration{0});
  EXPECT_FALSE(MayRetry(RetryPolicy(), WithHint(failed, "0"), 5, 1, delay));
}

TEST(MayRetryTest, AHintThatIsNoNumberForbidsIt) {
  Duration delay{0};
  EXPECT_FALSE(MayRetry(RetryPolicy(), WithHint(absl::UnavailableError(""), "-1"), 1, 0, delay));
  EXPECT_FALSE(MayRetry(RetryPolicy(), WithHint(absl::UnavailableError(""), "soon"), 1, 0, delay));
}

TEST(MayRetryTest, RetriesNothingElse) {
  Duration delay{0};
  for (int code = 1; code <= 16; ++code) {
    const auto one = static_cast<absl::StatusCode>(code);
    if (one == absl::StatusCode::kUnavailable) continue;
    EXPECT_FALSE(MayRetry(RetryPolicy(), absl::Status(one, ""), 1, 0, delay)) << code;
  }
}

TEST(RetryBudgetTest, GivesItsBurstAndThenAShareOfTheSuccesses) {
  RetryPolicy policy;
  policy.max_tokens = 3;
  policy.token_ratio = 0.25;
  RetryBudget budget(policy);
  EXPECT_TRUE(budget.Take() && budget.Take() && budget.Take());
  EXPECT_FALSE(budget.Take());
  for (int i = 0; i < 3; ++i) budget.OnSuccess();
  EXPECT_FALSE(budget.Take());
  budget.OnSuccess();
  EXPECT_TRUE(budget.Take());
  for (int i = 0; i < 1000; ++i) budget.OnSuccess();
  int taken = 0;
  while (budget.Take()) ++taken;
  EXPECT_EQ(taken, 3);
}

TEST(RetryPolicyTest, NamesTheFieldThatIsWrong) {
  RetryPolicy policy;
  EXPECT_TRUE(CheckRetryPolicy(policy).ok());
  policy.max_attempts = 0;
  EXPECT_THAT(std::string(CheckRetryPolicy(policy).message()),
              HasSubstr("max_attempts: 0, wanted 1 to 100"));
  policy = {};
  policy.token_ratio = -1;
  EXPECT_THAT(std::string(CheckRetryPolicy(policy).message()), HasSubstr("token_ratio: -1"));
}

}  // namespace
}  // namespace normd::client

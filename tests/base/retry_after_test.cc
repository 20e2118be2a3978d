#include "base/retry_after.h"

#include <gtest/gtest.h>

#include <chrono>

namespace normd {
namespace {

TEST(RetryAfterTest, IsWhatWasSetLast) {
  absl::Status status = absl::InternalError("x");
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
  SetRetryAfter(std::chrono::seconds(2), status);
  SetRetryAfter(Duration(0), status);
  EXPECT_EQ(RetryAfterOf(status), Duration(0));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

TEST(RetryAfterTest, AStatusThatIsOkHasNone) {
  absl::Status status;
  SetRetryAfter(Duration(1), status);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

}  // namespace
}  // namespace normd

#include "server/exec/kernel_status.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normd {
namespace {

TEST(FromKernelTest, MapsEachCodeAndKeepsTheMessage) {
  EXPECT_TRUE(FromKernel(norm::Status()).ok());
  const auto code = [](norm::StatusCode kernel) {
    const absl::Status status = FromKernel(norm::Status(kernel, "x: 3, wanted 4"));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("x: 3, wanted 4"));
    return status.code();
  };
  EXPECT_EQ(code(norm::StatusCode::kInvalidArgument), absl::StatusCode::kInternal);
  EXPECT_EQ(code(norm::StatusCode::kUnsupported), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(norm::StatusCode::kOutOfMemory), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(norm::StatusCode::kDeviceError), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace normd

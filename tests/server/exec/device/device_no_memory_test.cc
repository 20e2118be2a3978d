// Batches of a device during which an allocation fails, each one in turn.

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <utility>

#include "tests/server/exec/device/device_lane_fixture.h"
#include "tests/support/failing_allocations.h"

namespace normd {
namespace {

class DeviceNoMemoryTest : public DeviceLaneTest,
                           public ::testing::WithParamInterface<std::size_t> {};

TEST_P(DeviceNoMemoryTest, EachRequestEndsOnceAndTheLaneGoesOn) {
  DeviceBackendOptions options = SmallOptions();
  options.lane.mapped_bytes = GetParam();
  Start(options);
  int failed = 0;
  for (int left = 0; left < 1000; ++left) {
    SCOPED_TRACE(::testing::Message() << left << " allocations succeed");
    sent_.clear();
    for (LaneRequest* request : {&Add(3, 100), &Add(2, 8)}) request->request()->accepted = true;
    std::unique_ptr<Batch> batch = TakeBatch();
    {
      const FailingAllocations failing(left, /*fail=*/1);  // The fake device needs memory to wait.
      try {
        EXPECT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
      } catch (const std::bad_alloc&) {
        batch = nullptr;  // As the lane's thread.
      }
    }
    for (const LaneRequest& sent : sent_) {
      ASSERT_EQ(sent.done_calls(), 1);
      if (sent.code() == absl::StatusCode::kOk) {
        ExpectRight(sent);
      } else {
        EXPECT_EQ(sent.code(), absl::StatusCode::kResourceExhausted);
        ++failed;
      }
    }
  }
  EXPECT_GT(failed, 10) << "a batch allocates";
  sent_.clear();
  Add(3, 100);
  ExecuteAndExpectRight();
}

INSTANTIATE_TEST_SUITE_P(, DeviceNoMemoryTest, ::testing::ValuesIn(kMappedBytes));

}  // namespace
}  // namespace normd

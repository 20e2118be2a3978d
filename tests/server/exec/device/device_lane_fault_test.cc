// Devices that fail, and models that they cannot take.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/retry_after.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/exec/device/device_lane_fixture.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

struct FaultCase {
  DeviceCall call;
  int nth;
  bool mapped;
};

class DeviceLaneFaultTest : public DeviceLaneTest,
                            public ::testing::WithParamInterface<FaultCase> {};

TEST_P(DeviceLaneFaultTest, EndsTheBatchWithInternalAndRetiresTheLane) {
  const FaultCase& fault = GetParam();
  if (fault.mapped) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = 32 << 10;
    Start(options);
  }
  device_->FailCall(fault.call, fault.nth, absl::InternalError("injected"));
  Add(3, 100);
  Add(2, 8);
  EXPECT_EQ(Execute().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Series("normd_lanes", "state=\"working\""), "0");
  EXPECT_EQ(Series("normd_lanes", "state=\"retired\""), "1");
  for (const LaneRequest& sent : sent_) {
    EXPECT_EQ(sent.done_calls(), 1);
    EXPECT_EQ(sent.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(RetryAfterOf(sent.completion().status), Duration(0));
    EXPECT_THAT(std::string(sent.completion().status.message()), HasSubstr("injected"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, DeviceLaneFaultTest,
    ::testing::Values(
        FaultCase{DeviceCall::kCopyIn, 1, false}, FaultCase{DeviceCall::kCopyIn, 5, false},
        FaultCase{DeviceCall::kNormalize, 1, false}, FaultCase{DeviceCall::kNormalize, 3, false},
        FaultCase{DeviceCall::kCopyOut, 2, false}, FaultCase{DeviceCall::kAddMark, 1, false},
        FaultCase{DeviceCall::kAddMark, 9, false}, FaultCase{DeviceCall::kWait, 1, false},
        FaultCase{DeviceCall::kNormalize, 1, true}, FaultCase{DeviceCall::kAddPoint, 1, true},
        FaultCase{DeviceCall::kAddPoint, 2, false}, FaultCase{DeviceCall::kAwait, 3, false},
        FaultCase{DeviceCall::kWait, 1, true}));

TEST_F(DeviceLaneTest, ABatchThatTheKernelsRefuseFailsAloneAndTheLaneGoesOn) {
  device_->FailCall(DeviceCall::kNormalize, 1, absl::FailedPreconditionError("unsupported"));
  Add(1, 3);
  EXPECT_TRUE(Execute().ok());
  EXPECT_EQ(sent_[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RetryAfterOf(sent_[0].completion().status), std::nullopt);
  Add(1, 3);
  EXPECT_TRUE(Execute().ok());
  ExpectRight(sent_[1]);
}

TEST_F(DeviceLaneTest, EveryLaneOfABrokenDeviceRetiresAtItsNextBatch) {
  DeviceBackendOptions options = SmallOptions();
  options.lanes_per_device = 2;
  Start(options);
  device_->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  for (const std::size_t lane : {0, 1}) {
    Add(1, 3);
    EXPECT_FALSE(Execute(lane).ok());
  }
  EXPECT_EQ(sent_[1].code(), absl::StatusCode::kInternal);
  EXPECT_EQ(RetryAfterOf(sent_[1].completion().status), Duration(0));
}

TEST_F(DeviceLaneTest, EachDeviceHasLanesParametersAndMetricsOfItsOwnAndMayBeLostAlone) {
  metrics_ = std::make_unique<Metrics>();
  Start(SmallOptions(), 2);
  ASSERT_EQ(lanes_.size(), 2u);
  EXPECT_EQ(lanes_[0]->device(), "fake:0");
  EXPECT_EQ(lanes_[1]->device(), "fake:1");
  const auto execute = [this](std::size_t lane) {
    Add(2, 32);  // 1536 bytes.
    return Execute(lane).ok();
  };
  EXPECT_TRUE(execute(1));
  EXPECT_TRUE(execute(1));
  EXPECT_TRUE(execute(0));
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\""), "1536");
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\"", "fake:1"), "3072");

  devices_[0]->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  EXPECT_FALSE(execute(0));
  EXPECT_TRUE(execute(1));
  EXPECT_EQ(Series("normd_lanes", "state=\"retired\""), "1");
  EXPECT_EQ(Series("normd_lanes", "state=\"working\"", "fake:1"), "1");
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    if (i == 3) {
      EXPECT_EQ(sent_[i].code(), absl::StatusCode::kInternal);
    } else {
      ExpectRight(sent_[i]);
    }
  }
}

TEST_F(DeviceLaneTest, AModelThatFitsOnlyOneDeviceLeavesNothingThere) {
  Start(SmallOptions(), 2);
  const std::int64_t before = devices_[0]->allocated_bytes();
  devices_[1]->FailCall(DeviceCall::kAllocate, 1, absl::ResourceExhaustedError("no room"));
  const auto state = backend_->Prepare(*model_);
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("fake:1: no room"));
  EXPECT_EQ(devices_[0]->allocated_bytes(), before);
}

TEST_F(DeviceLaneTest, AModelThatDoesNotFitFailsItsLoadWithTheNumbers) {
  device_->FailCall(DeviceCall::kAllocate, 1,
                    absl::ResourceExhaustedError("wanted 512 bytes, free 12"));
  const auto state = backend_->Prepare(*model_);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(state.status().message()),
              HasSubstr("fake:0: wanted 512 bytes, free 12"));
}

TEST(DeviceBackendTest, FailsAtStartWhenTheDeviceHasNoRoom) {
  std::unique_ptr<Metrics> metrics = std::make_unique<Metrics>();
  SteadyClock clock;
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FakeDevice>("fake:0", 1000));
  const auto backend = DeviceBackend::Create(std::move(devices), SmallOptions(), *metrics, clock);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("fake:0"));
}

}  // namespace
}  // namespace normd

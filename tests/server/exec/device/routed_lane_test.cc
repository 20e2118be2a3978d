// Batches whose requests lie on several devices.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/retry_after.h"
#include "tests/server/exec/device/device_lane_fixture.h"

namespace normd {
namespace {

class RoutedLaneTest : public DeviceLaneTest {
 protected:
  RoutedLaneTest() {
    DeviceBackendOptions options = SmallOptions();
    options.shared_memory = true;
    Start(options, 2);
    sent_.clear();
  }

  // A request whose input lies on the device, and whose output goes there.
  void AddOn(int device, Batch& batch) {
    Add(batch, 2, 5);
    Request& request = *batch.requests.back();
    const auto bytes = static_cast<std::size_t>(request.geometry.inputs[0].bytes);
    memories_.push_back(
        *devices_[static_cast<std::size_t>(device)]->Allocate(MemoryKind::kDevice, 2 * bytes));
    std::byte* const data = memories_.back().data();
    std::memcpy(data, sent_.back().x.data(), bytes);
    const MemoryPlace place = {MemoryKind::kDevice, device};
    request.inputs[0].views.assign(1, ConstBytes(data, bytes));
    request.inputs[0].place = place;
    request.outputs.push_back({MutableBytes(data + bytes, bytes), place});
    placed_[sent_.size() - 1] = data + bytes;
  }

  // Moves what was written on a device to where ExpectRight looks.
  void ExpectRightThere(std::size_t index) {
    Sent& sent = sent_[index];
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    sent.completion.outputs[0] = Buffer(placed_.at(index), sent.x.size() * sizeof(float), [] {});
    ExpectRight(sent);
  }

  std::map<std::size_t, std::byte*> placed_;  // Outputs on devices, by request.
  std::vector<Buffer> memories_;
};

TEST_F(RoutedLaneTest, EachLaneHasEveryRequestComputedOnItsDevice) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::size_t first = sent_.size();
    const std::int64_t before[] = {devices_[0]->calls(DeviceCall::kNormalize),
                                   devices_[1]->calls(DeviceCall::kNormalize)};
    auto batch = std::make_unique<Batch>();
    AddOn(1, *batch);
    Add(*batch, 3, 4);
    AddOn(0, *batch);
    AddOn(1, *batch);
    ASSERT_TRUE(lane->Execute(std::move(batch)).ok());
    lane->Flush();
    ExpectRightThere(first);
    ExpectRight(sent_[first + 1]);
    ExpectRightThere(first + 2);
    ExpectRightThere(first + 3);
    EXPECT_GT(devices_[0]->calls(DeviceCall::kNormalize), before[0]);
    EXPECT_GT(devices_[1]->calls(DeviceCall::kNormalize), before[1]);
  }
}

TEST_F(RoutedLaneTest, AFaultOfAnotherDeviceEndsTheRequestsThereAlone) {
  // Once each lane that device 1 has for the others has met the fault, it has none left.
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 4; ++i) {
    batches.push_back(std::make_unique<Batch>());
    AddOn(1, *batches.back());
    AddOn(0, *batches.back());
    Add(*batches.back(), 3, 4);
  }
  devices_[1]->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batches[i])).ok());
    lanes_[0]->Flush();
    const Sent& lost = sent_[3 * i];
    ASSERT_EQ(lost.done, 1);
    EXPECT_EQ(lost.completion.status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(RetryAfterOf(lost.completion.status), Duration(0));
    ExpectRightThere(3 * i + 1);
    ExpectRight(sent_[3 * i + 2]);
  }
}

TEST_F(RoutedLaneTest, LanesThatBringWorkAtOnceTakeTurns) {
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 8; ++i) {
    batches.push_back(std::make_unique<Batch>());
    AddOn(i % 2, *batches.back());
    AddOn(1 - i % 2, *batches.back());
  }
  std::vector<std::thread> threads;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    threads.emplace_back([&, lane] {
      for (std::size_t i = lane; i < batches.size(); i += lanes_.size()) {
        EXPECT_TRUE(lanes_[lane]->Execute(std::move(batches[i])).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < sent_.size(); ++i) ExpectRightThere(i);
}

}  // namespace
}  // namespace normd

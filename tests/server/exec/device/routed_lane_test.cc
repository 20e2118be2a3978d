// Batches whose requests lie on several devices.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/retry_after.h"
#include "server/exec/device/pinned_pool.h"
#include "tests/server/exec/device/device_lane_fixture.h"
#include "tests/support/fake_device.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

class RoutedLaneTest : public DeviceLaneTest {
 protected:
  RoutedLaneTest() {
    DeviceBackendOptions options = SmallOptions();
    options.shared_memory = true;
    Start(options, 2);
  }

  // A request whose input lies on the device, and whose output goes there.
  void AddOn(int device) {
    LaneRequest& added = Add(2, 5);
    const std::size_t bytes = added.input(0).bytes();
    memories_.push_back(
        *devices_[static_cast<std::size_t>(device)]->Allocate(MemoryKind::kDevice, 2 * bytes));
    std::byte* const data = memories_.back().data();
    std::memcpy(data, added.input(0).data(), bytes);
    const MemoryPlace place = {MemoryKind::kDevice, device};
    InputMemory& input = added.request()->inputs[0];
    input.views.assign(1, ConstBytes(data, bytes));
    input.place = place;
    added.NameOutput(0, MutableBytes(data + bytes, bytes), place);
  }

  std::vector<Buffer> memories_;
};

TEST_F(RoutedLaneTest, EachLaneHasEveryRequestComputedOnItsDevice) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::int64_t before[] = {devices_[0]->calls(DeviceCall::kNormalize),
                                   devices_[1]->calls(DeviceCall::kNormalize)};
    AddOn(1);
    Add(3, 4);
    AddOn(0);
    AddOn(1);
    ASSERT_TRUE(lane->Execute(TakeBatch()).ok());
    lane->Flush();
    for (const LaneRequest& sent : sent_) ExpectRight(sent);
    EXPECT_GT(devices_[0]->calls(DeviceCall::kNormalize), before[0]);
    EXPECT_GT(devices_[1]->calls(DeviceCall::kNormalize), before[1]);
  }
}

TEST_F(RoutedLaneTest, AFaultOfAnotherDeviceEndsTheRequestsThereAlone) {
  // Once each lane that device 1 has for the others has met the fault, it has none left.
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 4; ++i) {
    AddOn(1);
    AddOn(0);
    Add(3, 4);
    batches.push_back(TakeBatch());
  }
  devices_[1]->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batches[i])).ok());
    lanes_[0]->Flush();
    const LaneRequest& lost = sent_[3 * i];
    ASSERT_EQ(lost.done_calls(), 1);
    EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(RetryAfterOf(lost.completion().status), Duration(0));
    ExpectRight(sent_[3 * i + 1]);
    ExpectRight(sent_[3 * i + 2]);
  }
}

TEST_F(RoutedLaneTest, LanesThatBringWorkAtOnceTakeTurns) {
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 8; ++i) {
    AddOn(i % 2);
    AddOn(1 - i % 2);
    batches.push_back(TakeBatch());
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
  for (const LaneRequest& sent : sent_) ExpectRight(sent);
}

constexpr std::size_t kPool = 4096;

class PinnedPoolTest : public ::testing::Test {
 protected:
  FakeDevice device_{"fake:0"};
  std::unique_ptr<PinnedPool> pool_ = *PinnedPool::Create(device_, kPool);
};

TEST_F(PinnedPoolTest, GivesBlocksUntilItIsFullAndTakesThemBack) {
  std::optional<Buffer> a = pool_->Take(2048);
  std::optional<Buffer> b = pool_->Take(2000);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(b->size(), 2000);
  EXPECT_FALSE(pool_->Take(1));
  EXPECT_EQ(pool_->use().free_bytes, 0);
  a.reset();
  EXPECT_TRUE(pool_->Take(2048));
}

TEST_F(PinnedPoolTest, MergesNeighboursInAnyOrderOfRelease) {
  std::vector<std::optional<Buffer>> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool_->Take(1024));
  for (int i : {1, 3, 0, 2}) blocks[static_cast<std::size_t>(i)].reset();
  EXPECT_TRUE(pool_->Take(kPool));
}

TEST_F(PinnedPoolTest, BlocksOutliveThePool) {
  std::optional<Buffer> block = pool_->Take(512);
  pool_.reset();
  std::memset(block->data(), 7, block->size());
  EXPECT_GT(device_.allocated_bytes(), 0);
  block.reset();
  EXPECT_EQ(device_.allocated_bytes(), 0);
}

TEST_F(PinnedPoolTest, FailsWithTheDevicesReason) {
  device_.FailCall(DeviceCall::kAllocate, 1, absl::ResourceExhaustedError("no pages"));
  EXPECT_EQ(PinnedPool::Create(device_, kPool).status().message(), "no pages");
}

TEST_F(PinnedPoolTest, BlocksOfSeveralThreadsNeverOverlap) {
  RunThreads(4, [this](int t) {
    std::mt19937 random(static_cast<unsigned>(t));
    for (int i = 0; i < 2000; ++i) {
      std::optional<Buffer> block = pool_->Take(random() % 900 + 1);
      if (!block) continue;
      std::memset(block->data(), t, block->size());
      for (std::size_t k = 0; k < block->size(); ++k) {
        ASSERT_EQ(block->data()[k], static_cast<std::byte>(t));
      }
    }
  });
  EXPECT_EQ(pool_->use().used_bytes, 0);
}

}  // namespace
}  // namespace normd

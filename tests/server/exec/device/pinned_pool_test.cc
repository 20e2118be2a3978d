#include "server/exec/device/pinned_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/fake_device.h"

namespace normd {
namespace {

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
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
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
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_->use().used_bytes, 0);
}

}  // namespace
}  // namespace normd

// What a device's lane computes, on which path, and where its inputs and outputs lie.

#include "server/exec/device/device_lane.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "tests/server/exec/device/device_lane_fixture.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

TEST_F(DeviceLaneTest, ComputesALargeBatchInPiecesThroughReusedStaging) {
  auto batch = std::make_unique<Batch>();
  Add(*batch, 3, 100);  // 2400 bytes a sample: cut between groups.
  Add(*batch, 5, 7);
  Add(*batch, 1, 1);
  Add(*batch, 2, 129);
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  for (const Sent& sent : sent_) ExpectRight(sent);
  EXPECT_GT(device_->calls(DeviceCall::kNormalize), 4);
}

TEST_F(DeviceLaneTest, CountsTheBytesThatCrossTheLinkOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    metrics_ = CreateMetrics({"test", ""});
    Start(options);
    sent_.clear();
    auto batch = std::make_unique<Batch>();
    Add(*batch, 4, 32);  // 3072 bytes, which leave no gap in the arena.
    Add(*batch, 1, 64);  // 1536
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\""), "4608");
    EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"out\""), "4608");
  }
}

TEST_F(DeviceLaneTest, ComputesASmallBatchThroughTheLinkInOneLaunch) {
  DeviceBackendOptions options = SmallOptions();
  options.lane.mapped_bytes = 4096;
  Start(options);
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 9);
  Add(*batch, 2, 11);
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  for (const Sent& sent : sent_) ExpectRight(sent);
  EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 1);
  EXPECT_EQ(device_->calls(DeviceCall::kCopyOut), 0);
}

TEST_F(DeviceLaneTest, ComputesPartsOfASampleWithTheirParametersOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    Start(options);
    sent_.clear();
    auto batch = std::make_unique<Batch>();
    for (int i = 0; i < 4; ++i) Add(*batch, 1, 50);
    // Six channels in three groups: all, one group, two, one.
    const std::vector<ChannelRange> ranges = {{}, {4, 2}, {0, 4}, {0, 2}};
    constexpr std::int64_t kChannelBytes = 50 * 4;
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      Request& request = *batch->requests[i];
      const auto* x = reinterpret_cast<const std::byte*>(sent_[i].x.data());
      const TensorSize size = {ranges[i].count * kChannelBytes};
      request.geometry = {1, 50, ranges[i].count / 2, ranges[i], {size}, {size, {}, {}}};
      request.inputs[0].views = {
          ConstBytes(x + ranges[i].first * kChannelBytes, static_cast<std::size_t>(size.bytes))};
    }
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    ExpectRight(sent_[0]);
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      const Sent& sent = sent_[i];
      ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
      std::vector<double> expected(sent.x.size());
      ASSERT_TRUE(norm::NormalizeReference(Program().Spec(norm::DType::kFloat32), Program().params,
                                           {sent.x.data(), nullptr, 1, 50}, expected.data())
                      .ok());
      const auto count = static_cast<std::size_t>(ranges[i].count * 50);
      ASSERT_EQ(sent.completion.outputs[0].size(), count * sizeof(float));
      for (std::size_t j = 0; j < count; ++j) {
        float y = 0;
        std::memcpy(&y, sent.completion.outputs[0].data() + j * sizeof(float), sizeof(float));
        ASSERT_EQ(y,
                  static_cast<float>(expected[static_cast<std::size_t>(ranges[i].first) * 50 + j]))
            << "part " << i << ", element " << j;
      }
    }
  }
}

TEST_F(DeviceLaneTest, AnInlineLaneComputesWhatItIsMadeForOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    options.inline_lanes_per_device = 2;
    options.inline_bytes = 16 << 10;
    Start(options);
    sent_.clear();
    const auto lanes = backend_->MakeInlineLanes();
    ASSERT_EQ(lanes.size(), 2u);
    EXPECT_EQ(lanes[1]->name(), "fake:0:inline/1");
    auto batch = std::make_unique<Batch>();
    Add(*batch, 1, 682);  // 16368 bytes.
    ASSERT_TRUE(lanes[1]->Execute(std::move(batch)).ok());
    ExpectRight(sent_[0]);
    EXPECT_EQ(device_->calls(DeviceCall::kAwait), 0);
  }
}

TEST_F(DeviceLaneTest, StagedInputsAreReadWhereTheyLieAmongOthersOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    StartStaging(mapped_bytes);
    auto batch = std::make_unique<Batch>();
    for (const std::int64_t spatial : {40, 300, 9, 77}) Add(*batch, 1, spatial);
    for (const std::size_t i : {std::size_t{1}, std::size_t{3}}) {
      backend_->stager()->Stage(*batch->requests[i]);
      EXPECT_TRUE(batch->requests[i]->IsStaged());
    }
    // Nobody reads any more where the staged ones came from.
    const std::vector<float> x = sent_[1].x;
    std::fill(sent_[1].x.begin(), sent_[1].x.end(), std::nanf(""));
    const std::int64_t copies = device_->calls(DeviceCall::kCopyIn);
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    EXPECT_EQ(device_->calls(DeviceCall::kCopyIn) == copies, mapped_bytes > 0);
    sent_[1].x = x;
    for (const Sent& sent : sent_) ExpectRight(sent);
  }
}

TEST_F(DeviceLaneTest, AStagedInputsBlockBecomesTheOutputs) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    StartStaging(mapped_bytes);
    auto batch = std::make_unique<Batch>();
    Add(*batch, 1, 300);
    backend_->stager()->Stage(*batch->requests[0]);
    ASSERT_TRUE(batch->requests[0]->IsStaged());
    const std::byte* const block = batch->requests[0]->staged.data();
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    ExpectRight(sent_[0]);
    EXPECT_EQ(sent_[0].completion.outputs[0].data(), block);
  }
}

TEST_F(DeviceLaneTest, TellsOfALargeBatchBeforeItGathersIt) {
  DeviceBackendOptions options = SmallOptions();
  options.lane.mapped_bytes = 4096;
  Start(options);
  int told = 0;
  lanes_[0]->OnLargeBatch([&] {
    ++told;
    EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 1);
  });
  for (const std::int64_t spatial : {100, 200}) {  // 2400 and 4800 bytes.
    auto batch = std::make_unique<Batch>();
    Add(*batch, 1, spatial);
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    EXPECT_EQ(told, spatial == 200 ? 1 : 0);
    ExpectRight(sent_.back());
  }
}

TEST_F(DeviceLaneTest, LanesOfSeveralDevicesHaveLessStaging) {
  const auto staging = [](std::size_t devices) {
    const DeviceLaneOptions options = LaneOptionsFor(devices);
    return options.chunk_bytes * static_cast<std::size_t>(options.chunks);
  };
  EXPECT_LT(2 * staging(2), staging(1));
  EXPECT_EQ(staging(8), staging(2));
}

TEST_F(DeviceLaneTest, StagingIsDividedIntoWholePagesAndHasALeastSize) {
  DeviceLaneOptions options = LaneOptionsFor(1);
  SetStagingBytes(1'000'000, options);
  EXPECT_EQ(options.chunk_bytes, 61u * 4096);
  SetStagingBytes(1, options);
  EXPECT_EQ(options.chunk_bytes, 64u << 10);
}

TEST_F(DeviceLaneTest, StagesNeitherSmallNorLargeRequestsNorWhenThePoolIsShort) {
  DeviceBackendOptions options = SmallOptions();
  options.pool_bytes = 16 << 10;
  options.min_staged_bytes = 1000;
  options.max_staged_bytes = 4000;
  Start(options);
  Batch batch;
  for (const std::int64_t spatial : {41, 167, 42, 166}) Add(batch, 1, spatial);
  for (const auto& request : batch.requests) backend_->stager()->Stage(*request);
  EXPECT_FALSE(batch.requests[0]->IsStaged());  // 984 bytes
  EXPECT_FALSE(batch.requests[1]->IsStaged());  // 4008
  EXPECT_TRUE(batch.requests[2]->IsStaged());
  EXPECT_TRUE(batch.requests[3]->IsStaged());
  for (int i = 0; i < 3; ++i) Add(batch, 1, 166);  // 3984 bytes each: the last finds 2 KiB.
  for (std::size_t i = 4; i < 7; ++i) backend_->stager()->Stage(*batch.requests[i]);
  EXPECT_TRUE(batch.requests[5]->IsStaged());
  EXPECT_FALSE(batch.requests[6]->IsStaged());
  for (auto& request : batch.requests) Fail(std::move(request), absl::CancelledError("enough"));
}

TEST_F(DeviceLaneTest, GoesRoundTheArenaInWavesWhenTheBatchIsLarger) {
  auto batch = std::make_unique<Batch>();
  for (int i = 0; i < 5; ++i) Add(*batch, 2, 200);  // 9600 bytes each, the arena holds three.
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  for (const Sent& sent : sent_) ExpectRight(sent);
}

TEST_F(DeviceLaneTest, EmptyTensorsAreAnsweredWithEmptyTensors) {
  auto batch = std::make_unique<Batch>();
  Add(*batch, 0, 5);
  Add(*batch, 1, 5);
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  for (const Sent& sent : sent_) ExpectRight(sent);
}

TEST_F(DeviceLaneTest, ATensorLargerThanTheArenaFailsAloneWithTheNumbers) {
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  Add(*batch, 1, 2000);
  Add(*batch, 1, 3);
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  ExpectRight(sent_[0]);
  ExpectRight(sent_[2]);
  EXPECT_EQ(sent_[1].completion.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent_[1].completion.status.message()), HasSubstr("48000"));
}

TEST_F(DeviceLaneTest, ResponsesGoToOrdinaryMemoryWhenReadersHoldThePool) {
  DeviceBackendOptions options = SmallOptions();
  options.pool_bytes = 1024;
  Start(options);
  for (int i = 0; i < 3; ++i) {
    auto batch = std::make_unique<Batch>();
    Add(*batch, 1, 40);  // 960 bytes: the first response holds the pool.
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  }
  for (const Sent& sent : sent_) ExpectRight(sent);
}

TEST_F(DeviceLaneTest, ReadersThatHoldTheirResponsesLeaveTheLanesTheirShareOfThePool) {
  DeviceBackendOptions options = SmallOptions();
  options.pool_bytes = 8 << 10;
  options.lane.mapped_bytes = 16 << 10;
  Start(options);
  for (int i = 0; i < 20; ++i) {
    auto batch = std::make_unique<Batch>();
    Add(*batch, 1, 40);  // 1 KiB each: seven may stay, the eighth is scarce.
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  }
  for (const Sent& sent : sent_) ExpectRight(sent);
  // All twenty found a block, which needs no copy by the device.
  EXPECT_EQ(device_->calls(DeviceCall::kCopyOut), 0);
}

TEST_F(DeviceLaneTest, CancelledAndExpiredRequestsAreNotComputed) {
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  Add(*batch, 1, 3);
  batch->requests[0]->cancelled = std::make_shared<std::atomic<bool>>(true);
  batch->requests[1]->deadline = clock_.Now();
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  EXPECT_EQ(sent_[0].completion.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sent_[1].completion.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 0);
}

TEST_F(DeviceLaneTest, MemoryOfTheModelComesBackWithItsLastBatch) {
  const std::int64_t with_model = device_->allocated_bytes();
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  model_.reset();
  EXPECT_EQ(device_->allocated_bytes(), with_model);
  batch->model.reset();
  batch.reset();
  EXPECT_LT(device_->allocated_bytes(), with_model);
}

}  // namespace
}  // namespace normd

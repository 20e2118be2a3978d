// What a device's lane does beside the promises of lane_test.cc: on which path it computes, and
// where its inputs and outputs lie.

#include "server/exec/device/device_lane.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/exec/device/device_lane_backend.h"
#include "tests/server/exec/device/device_lane_fixture.h"
#include "tests/support/fake_device.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

DeviceBackendOptions Mapped(std::size_t mapped_bytes) {
  DeviceBackendOptions options = SmallOptions();
  options.lane.mapped_bytes = mapped_bytes;
  return options;
}

class DevicePathTest : public DeviceLaneTest, public ::testing::WithParamInterface<std::size_t> {
 protected:
  DevicePathTest() { Start(Mapped(GetParam())); }

  // Anew, with room for what is staged.
  void StartStaging() {
    DeviceBackendOptions options = Mapped(GetParam());
    options.max_staged_bytes = 8 << 10;
    Start(options);
  }
};

INSTANTIATE_TEST_SUITE_P(MappedBytes, DevicePathTest, ::testing::ValuesIn(kMappedBytes));

TEST_P(DevicePathTest, CountsTheBytesThatCrossTheLink) {
  Add(4, 32);  // 3072 bytes, which leave no gap in the arena.
  Add(1, 64);  // 1536
  ASSERT_TRUE(Execute().ok());
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\""), "4608");
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"out\""), "4608");
}

TEST_P(DevicePathTest, ComputesPartsOfASampleWithTheirParameters) {
  for (int i = 0; i < 4; ++i) Add(1, 50);
  // Six channels in three groups: all, one group, two, one.
  sent_[1].CutTo({4, 2}, 2);
  sent_[2].CutTo({0, 4}, 2);
  sent_[3].CutTo({0, 2}, 2);
  ExecuteAndExpectRight();
}

TEST_P(DevicePathTest, AnInlineLaneComputesWhatItIsMadeFor) {
  DeviceBackendOptions options = Mapped(GetParam());
  options.inline_lanes_per_device = 2;
  options.inline_bytes = 16 << 10;
  Start(options);
  const auto lanes = backend_->MakeInlineLanes();
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[1]->name(), "fake:0:inline/1");
  Add(1, 682);  // 16368 bytes.
  ASSERT_TRUE(lanes[1]->Execute(TakeBatch()).ok());
  ExpectRight(sent_[0]);
  EXPECT_EQ(device_->calls(DeviceCall::kAwait), 0);
}

TEST_P(DevicePathTest, StagedInputsAreReadWhereTheyLieAmongOthers) {
  StartStaging();
  for (const std::int64_t spatial : {40, 300, 9, 77}) Add(1, spatial);
  const ByteViews views = sent_[1].request()->inputs[0].views;
  const std::shared_ptr<void> memory = sent_[1].request()->input_owner;
  for (const std::size_t i : {std::size_t{1}, std::size_t{3}}) {
    Stage(sent_[i]);
    EXPECT_TRUE(sent_[i].request()->IsStaged());
  }
  // Nobody reads any more where the staged one came from.
  for (const ConstBytes view : views) {
    std::memset(const_cast<std::byte*>(view.data()), 0xff, view.size());
  }
  const std::int64_t copies = device_->calls(DeviceCall::kCopyIn);
  ExecuteAndExpectRight();
  EXPECT_EQ(device_->calls(DeviceCall::kCopyIn) == copies, GetParam() > 0);
}

TEST_P(DevicePathTest, AStagedInputsBlockBecomesTheOutput) {
  StartStaging();
  Add(1, 300);
  Stage(sent_[0]);
  ASSERT_TRUE(sent_[0].request()->IsStaged());
  const std::byte* const block = sent_[0].request()->staged.data();
  ExecuteAndExpectRight();
  EXPECT_EQ(sent_[0].completion().outputs[0].data(), block);
}

TEST_F(DeviceLaneTest, ComputesALargeBatchInPiecesThroughReusedStaging) {
  Add(3, 100);  // 2400 bytes a sample: cut between groups.
  Add(5, 7);
  Add(1, 1);
  Add(2, 129);
  ExecuteAndExpectRight();
  EXPECT_GT(device_->calls(DeviceCall::kNormalize), 4);
}

TEST_F(DeviceLaneTest, ComputesASmallBatchThroughTheLinkInOneLaunch) {
  Start(Mapped(4096));
  Add(1, 9);
  Add(2, 11);
  ExecuteAndExpectRight();
  EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 1);
  EXPECT_EQ(device_->calls(DeviceCall::kCopyOut), 0);
}

TEST_F(DeviceLaneTest, AnEmptyRequestAmongLargeOnesTakesNoLaunchOfItsOwn) {
  DeviceBackendOptions options = SmallOptions();
  options.lane.piece_bytes = 32 << 10;  // All in one piece.
  Start(options);
  for (const std::int64_t samples : {0, 1, 0, 2, 0}) Add(samples, 100);
  ExecuteAndExpectRight();
  EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 1);
}

TEST_F(DeviceLaneTest, TellsOfALargeBatchBeforeItGathersIt) {
  Start(Mapped(4096));
  int told = 0;
  lanes_[0]->OnLargeBatch([&] {
    ++told;
    EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 1);
  });
  for (const std::int64_t spatial : {100, 200}) {  // 2400 and 4800 bytes.
    Add(1, spatial);
    ExecuteAndExpectRight();
    EXPECT_EQ(told, spatial == 200 ? 1 : 0);
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
  const auto is_staged = [this](std::int64_t spatial) {
    LaneRequest& request = Add(1, spatial);
    Stage(request);
    return request.request()->IsStaged();
  };
  EXPECT_FALSE(is_staged(41));   // 984 bytes
  EXPECT_FALSE(is_staged(167));  // 4008
  EXPECT_TRUE(is_staged(42));
  EXPECT_TRUE(is_staged(166));
  is_staged(166);  // 3984 bytes each: the last finds 2 KiB.
  EXPECT_TRUE(is_staged(166));
  EXPECT_FALSE(is_staged(166));
  for (LaneRequest& request : sent_) {
    Fail(std::move(request.request()), absl::CancelledError("enough"));
  }
}

TEST_F(DeviceLaneTest, GoesRoundTheArenaInWavesWhenTheBatchIsLarger) {
  for (int i = 0; i < 5; ++i) Add(2, 200);  // 9600 bytes each, the arena holds three.
  ExecuteAndExpectRight();
}

TEST_F(DeviceLaneTest, ATensorLargerThanTheArenaFailsAloneWithTheNumbers) {
  Add(1, 3);
  Add(1, 2000);
  Add(1, 3);
  ASSERT_TRUE(Execute().ok());
  ExpectRight(sent_[0]);
  ExpectRight(sent_[2]);
  EXPECT_EQ(sent_[1].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent_[1].completion().status.message()), HasSubstr("48000"));
}

TEST_F(DeviceLaneTest, ResponsesGoToOrdinaryMemoryWhenReadersHoldThePool) {
  DeviceBackendOptions options = SmallOptions();
  options.pool_bytes = 1024;
  Start(options);
  for (int i = 0; i < 3; ++i) {
    Add(1, 40);  // 960 bytes: the first response holds the pool.
    ExecuteAndExpectRight();
  }
}

TEST_F(DeviceLaneTest, ReadersThatHoldTheirResponsesLeaveTheLanesTheirShareOfThePool) {
  DeviceBackendOptions options = Mapped(16 << 10);
  options.pool_bytes = 8 << 10;
  Start(options);
  for (int i = 0; i < 20; ++i) {
    Add(1, 40);  // 1 KiB each: seven may stay, the eighth is scarce.
    ExecuteAndExpectRight();
  }
  // All twenty found a block, which needs no copy by the device.
  EXPECT_EQ(device_->calls(DeviceCall::kCopyOut), 0);
}

TEST_F(DeviceLaneTest, CancelledAndExpiredRequestsAreNotComputed) {
  Add(1, 3).request()->cancelled = std::make_shared<std::atomic<bool>>(true);
  Add(1, 3).request()->deadline = clock_.Now();
  ASSERT_TRUE(Execute().ok());
  EXPECT_EQ(sent_[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sent_[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(device_->calls(DeviceCall::kNormalize), 0);
}

TEST_F(DeviceLaneTest, MemoryOfTheModelComesBackWithItsLastBatch) {
  const std::int64_t with_model = device_->allocated_bytes();
  Add(1, 3);
  std::unique_ptr<Batch> batch = TakeBatch();
  model_.reset();
  EXPECT_EQ(device_->allocated_bytes(), with_model);
  batch->model.reset();
  batch.reset();
  EXPECT_LT(device_->allocated_bytes(), with_model);
}

}  // namespace

// What lane_test.cc runs on here.

std::vector<std::string> LanePaths() { return {"Copied", "Mapped"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path) {
  // Small enough that a tensor of some kilobytes goes through every mechanism.
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.pool_bytes = 4 << 20;
  options.lane.arena_bytes = 2 << 20;
  options.lane.chunk_bytes = path == "Copied" ? 512 : 8 << 10;
  options.lane.chunks = 2;
  options.lane.piece_bytes = 1024;
  options.lane.mapped_bytes = 16 << 10;
  return std::make_unique<DeviceLaneBackend>(std::make_unique<FakeDevice>("fake:0", 32 << 20),
                                             options, path, Closeness::kRounded);
}

}  // namespace normd

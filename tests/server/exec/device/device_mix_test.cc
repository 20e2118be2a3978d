// Requests with several inputs and outputs of different types, in memory of every kind, on a
// device.

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/exec/device/device_lane.h"
#include "server/exec/device/device_program.h"
#include "server/exec/device/pinned_pool.h"
#include "server/exec/device/pinned_stager.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_device.h"
#include "tests/support/mix_operation.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

constexpr MemoryPlace kHost = {MemoryKind::kHost};
constexpr MemoryPlace kPinned = {MemoryKind::kPinned};
constexpr MemoryPlace kOwn = {MemoryKind::kDevice, 3};  // On the lane's device.
constexpr MemoryPlace kOther = {MemoryKind::kDevice, 1};

class DeviceMix final : public DeviceProgram {
 public:
  explicit DeviceMix(std::vector<int> overwrites) : overwrites_(std::move(overwrites)) {}

  absl::Span<const int> overwrites() const override { return overwrites_; }
  bool gains_from_pieces() const override { return true; }
  absl::Status Launch(const DeviceSite& site, norm::DType,
                      absl::Span<const DeviceSegment> segments) const override {
    std::vector<DeviceSegment> list(segments.begin(), segments.end());
    return EnqueueOnFakeStream(site.stream, [list = std::move(list)] {
      for (const DeviceSegment& segment : list) {
        ComputeMix(segment.inputs, segment.outputs, segment.samples);
      }
    });
  }

 private:
  const std::vector<int> overwrites_;
};

class DeviceMixTest : public testing::TestWithParam<std::size_t> {
 protected:
  DeviceMixTest() {
    DeviceLaneOptions options;
    options.name = "fake:3/0";
    options.arena_bytes = 8 << 10;
    options.chunk_bytes = 600;
    options.chunks = 2;
    options.piece_bytes = 900;
    options.mapped_bytes = GetParam();
    lane_ = *DeviceLane::Create(device_, *pool_, lane_metrics_, clock_, options);
  }
  void Load(std::vector<int> overwrites) {
    std::shared_ptr<Model> model = MakeMixModel(metrics_);
    model->set_backend_state(std::make_unique<DeviceMix>(std::move(overwrites)));
    model_ = model;
  }
  void Execute(const std::vector<MixRequest*>& requests) {
    auto batch = std::make_unique<Batch>();
    batch->model = model_;
    for (MixRequest* request : requests) batch->requests.push_back(std::move(request->request()));
    ASSERT_TRUE(lane_->Execute(std::move(batch)).ok());
  }

  SteadyClock clock_;
  ModelMetrics metrics_;
  LaneMetrics lane_metrics_;
  FakeDevice device_{"fake:3"};
  std::unique_ptr<PinnedPool> pool_ = *PinnedPool::Create(device_, 1 << 20);
  std::unique_ptr<DeviceLane> lane_;
  std::shared_ptr<const Model> model_;
  std::mt19937_64 random_{norm::testing::TestSeed()};
};

TEST_P(DeviceMixTest, TensorsOfEveryLayoutAndSizeGiveTheirBits) {
  const std::vector<std::vector<int>> programs = {{0, 2}, {0, -1}, {-1, 2}, {-1, -1}};
  for (const std::vector<int>& overwrites : programs) {
    Load(overwrites);
    for (int round = 0; round < 40; ++round) {
      std::deque<MixRequest> requests;
      std::vector<MixRequest*> batch;
      const auto count = 1 + random_() % 9;
      for (std::uint64_t i = 0; i < count; ++i) {
        MixRequest::Layouts layouts;
        for (MixLayout& input : layouts.inputs) {
          const MemoryPlace places[] = {kHost, kPinned, kOwn};
          input.place = places[random_() % 3];
          // The host cannot put together what lies on a device.
          input.in_one_piece = !input.place.OnHost() || random_() % 2 == 0;
        }
        for (std::size_t o = 0; o < 2; ++o) {
          const MemoryPlace places[] = {kHost, kPinned, kOwn};
          layouts.outputs[o] = places[random_() % 3];
          layouts.named[o] = random_() % 2 == 0;
        }
        const auto samples = static_cast<std::int64_t>(random_() % (round % 2 == 0 ? 8 : 120));
        batch.push_back(&requests.emplace_back(model_, i + 1, samples, layouts, random_));
      }
      Execute(batch);
      for (const MixRequest& request : requests) {
        EXPECT_EQ(request.Wrong(), "");
        EXPECT_TRUE(request.InputsIntact());
      }
    }
  }
}

TEST_P(DeviceMixTest, WhatLiesOnTheDeviceIsNotCopied) {
  Load({0, 2});
  MixRequest::Layouts layouts;
  for (MixLayout& input : layouts.inputs) input.place = kOwn;
  for (std::size_t o = 0; o < 2; ++o) {
    layouts.named[o] = true;
    layouts.outputs[o] = kOwn;
  }
  MixRequest request(model_, 1, 50, layouts, random_);
  Execute({&request});
  EXPECT_EQ(request.Wrong(), "");
  EXPECT_TRUE(request.InputsIntact());
  EXPECT_EQ(device_.calls(DeviceCall::kCopyIn), 0);
  EXPECT_EQ(device_.calls(DeviceCall::kCopyOut), 0);
}

TEST_P(DeviceMixTest, PinnedInputsAreReadWhereTheyLie) {
  Load({0, 2});
  MixRequest::Layouts layouts;
  for (MixLayout& input : layouts.inputs) input.place = kPinned;
  MixRequest request(model_, 1, 100, layouts, random_);  // 2600 bytes.
  Execute({&request});
  EXPECT_EQ(request.Wrong(), "");
  EXPECT_TRUE(request.InputsIntact());
  const bool mapped = GetParam() > 2600;
  // One copy of each input for each of three pieces, and none through staging.
  EXPECT_EQ(device_.calls(DeviceCall::kCopyIn), mapped ? 0 : 9);
}

TEST_P(DeviceMixTest, StagedInputsGiveTheirBits) {
  for (const std::vector<int>& overwrites : {std::vector<int>{0, 2}, {-1, -1}}) {
    Load(overwrites);
    PinnedStager stager(*pool_, clock_, 100, 1 << 20);
    for (const bool in_one_piece : {false, true}) {
      MixRequest::Layouts layouts;
      for (MixLayout& input : layouts.inputs) input.in_one_piece = in_one_piece;
      MixRequest request(model_, 1, 60, layouts, random_);
      stager.Stage(*request.request());
      EXPECT_TRUE(request.request()->IsStaged());
      Execute({&request});
      EXPECT_EQ(request.Wrong(), "");
    }
  }
}

TEST_P(DeviceMixTest, TheStagerLeavesAloneWhatIsNotInHostMemory) {
  Load({0, 2});
  PinnedStager stager(*pool_, clock_, 100, 1 << 20);
  for (const MemoryPlace place : {kPinned, kOwn}) {
    MixRequest::Layouts layouts;
    layouts.inputs[1].place = place;
    MixRequest request(model_, 1, 60, layouts, random_);
    stager.Stage(*request.request());
    EXPECT_FALSE(request.request()->IsStaged());
    Execute({&request});
    EXPECT_EQ(request.Wrong(), "");
  }
}

TEST_P(DeviceMixTest, MemoryThatTheLaneCannotAddressIsRefusedByNameAndNobodyElseSuffers) {
  Load({0, 2});
  for (std::size_t tensor = 0; tensor < 6; ++tensor) {
    MixRequest::Layouts layouts;
    std::string wanted =
        ": lies in memory of device 1, wanted host or pinned memory or memory of "
        "device 3";
    std::string name = "inputs[" + std::to_string(tensor) + "]";
    if (tensor < 3) {
      layouts.inputs[tensor].place = kOther;
    } else if (tensor < 5) {
      layouts.named[tensor - 3] = true;
      layouts.outputs[tensor - 3] = kOther;
      name = "outputs[" + std::to_string(tensor - 3) + "]";
    } else {
      layouts.inputs[2] = {kOwn, false};
      name = "inputs[2]";
      wanted =
          ": lies in memory of device 3 in several pieces or not aligned to 8 bytes, wanted "
          "one aligned piece";
    }
    MixRequest before(model_, 1, 4, {}, random_);
    MixRequest refused(model_, 2, 4, layouts, random_);
    MixRequest after(model_, 3, 4, {}, random_);
    Execute({&before, &refused, &after});
    EXPECT_EQ(before.Wrong(), "");
    EXPECT_EQ(after.Wrong(), "");
    ASSERT_EQ(refused.done_calls(), 1);
    EXPECT_EQ(refused.completion().status, absl::InvalidArgumentError(name + wanted));
  }
}

INSTANTIATE_TEST_SUITE_P(MappedBytes, DeviceMixTest, testing::Values(0, 700, 64 << 10));

}  // namespace
}  // namespace normd

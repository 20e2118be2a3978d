#include "server/exec/device/device_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/reference.h"
#include "server/exec/device/device_backend.h"
#include "tests/support/fake_device.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kChannels = 6;

Parameter MakeParameter(const char* name, float first) {
  Parameter parameter;
  parameter.name = name;
  parameter.dtype = norm::DType::kFloat32;
  parameter.shape = *Shape::Create({kChannels});
  const std::size_t bytes = kChannels * sizeof(float);
  std::shared_ptr<std::byte[]> data(new (std::align_val_t{64}) std::byte[bytes], [](std::byte* p) {
    ::operator delete[](p, std::align_val_t{64});
  });
  for (int i = 0; i < kChannels; ++i) {
    const float value = first + 0.25f * static_cast<float>(i);
    std::memcpy(data.get() + static_cast<std::size_t>(i) * sizeof(float), &value, sizeof(float));
  }
  parameter.data = data;
  return parameter;
}

// Small sizes everywhere, so that a tensor of some kilobytes already uses every mechanism.
DeviceBackendOptions SmallOptions() {
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.pool_bytes = 64 << 10;
  options.lane.arena_bytes = 32 << 10;
  options.lane.chunk_bytes = 512;
  options.lane.chunks = 2;
  options.lane.piece_bytes = 1024;
  options.lane.mapped_bytes = 0;
  return options;
}

class DeviceLaneTest : public ::testing::Test {
 protected:
  DeviceLaneTest() { Start(SmallOptions()); }

  ~DeviceLaneTest() override {
    lanes_.clear();
    model_.reset();
  }

  // Anew, with room for what is staged.
  void StartStaging(std::size_t mapped_bytes) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    options.max_staged_bytes = 8 << 10;
    Start(options);
    sent_.clear();
  }

  void Start(const DeviceBackendOptions& options, int device_count = 1) {
    lanes_.clear();
    model_.reset();
    devices_.clear();
    std::vector<std::unique_ptr<Device>> devices;
    for (int i = 0; i < device_count; ++i) {
      auto device = std::make_unique<FakeDevice>("fake:" + std::to_string(i), 1 << 20);
      devices_.push_back(device.get());
      devices.push_back(std::move(device));
    }
    device_ = devices_.front();
    backend_ = *DeviceBackend::Create(std::move(devices), options, *metrics_, clock_);
    lanes_ = backend_->MakeLanes();
    v1::ModelConfig config;
    config.mutable_group_norm()->set_channels(kChannels);
    config.mutable_group_norm()->set_groups(3);
    std::shared_ptr<Model> model =
        *Model::Create("m", 1, config, {MakeParameter("weight", 1), MakeParameter("bias", -1)},
                       metrics_->ForModel("m", 1));
    model->set_backend_state(*backend_->Prepare(*model));
    model_ = model;
  }

  struct Sent {
    std::vector<float> x;
    Geometry geometry;
    int done = 0;
    Completion completion;
  };

  // A request of random values, its bytes in slices of odd lengths.
  void Add(Batch& batch, std::int64_t samples, std::int64_t spatial) {
    Sent& sent = sent_.emplace_back();
    sent.geometry =
        *model_->Check(norm::DType::kFloat32, *Shape::Create({samples, kChannels, spatial}));
    std::normal_distribution<float> normal(3, 2);
    for (std::int64_t i = 0; i < samples * kChannels * spatial; ++i)
      sent.x.push_back(normal(random_));
    auto request = std::make_unique<Request>();
    request->id = sent_.size();
    request->model = model_;
    request->geometry = sent.geometry;
    const auto* bytes = reinterpret_cast<const std::byte*>(sent.x.data());
    const auto size = static_cast<std::size_t>(sent.geometry.inputs[0].bytes);
    request->inputs.emplace_back();
    for (std::size_t at = 0; at < size;) {
      const std::size_t part = std::min<std::size_t>(size - at, random_() % 777 + 1);
      request->inputs[0].views.emplace_back(bytes + at, part);
      at += part;
    }
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    batch.model = model_;
    batch.dtype = norm::DType::kFloat32;
    batch.bytes += sent.geometry.inputs[0].bytes;
    batch.requests.push_back(std::move(request));
  }

  const NormProgram& Program() const { return std::get<NormProgram>(model_->program()); }

  void ExpectRight(const Sent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    ASSERT_EQ(sent.completion.outputs[0].size(), sent.x.size() * sizeof(float));
    std::vector<double> expected(sent.x.size());
    norm::Segment segment{sent.x.data(), nullptr, sent.geometry.samples, sent.geometry.spatial};
    ASSERT_TRUE(norm::NormalizeReference(Program().Spec(norm::DType::kFloat32), Program().params,
                                         segment, expected.data())
                    .ok());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      float y = 0;
      std::memcpy(&y, sent.completion.outputs[0].data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(y, static_cast<float>(expected[i])) << "element " << i;
    }
  }

  // The scrape's line of the device's series `name` whose second label is `label`; "" if none.
  std::string Series(const std::string& name, const std::string& label,
                     const std::string& device = "fake:0") const {
    const std::string start = name + "{device=\"" + device + "\"," + label + "} ";
    const std::string scrape = metrics_->Scrape();
    const std::size_t begin = scrape.find("\n" + start);
    if (begin == std::string::npos) return "";
    const std::size_t value = begin + 1 + start.size();
    return scrape.substr(value, scrape.find('\n', value) - value);
  }

  SteadyClock clock_;
  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"test", ""});
  std::vector<FakeDevice*> devices_;
  FakeDevice* device_ = nullptr;  // The first of them.
  std::unique_ptr<DeviceBackend> backend_;
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<Sent> sent_;
  std::mt19937 random_{20};
};

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
      request.geometry = {1, 50, ranges[i].count / 2, ranges[i], {size}, {size}};
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
  auto batch = std::make_unique<Batch>();
  Add(*batch, 3, 100);
  Add(*batch, 2, 8);
  const absl::Status status = lanes_[0]->Execute(std::move(batch));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Series("normd_lanes", "state=\"working\""), "0");
  EXPECT_EQ(Series("normd_lanes", "state=\"retired\""), "1");
  for (const Sent& sent : sent_) {
    EXPECT_EQ(sent.done, 1);
    EXPECT_EQ(sent.completion.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sent.completion.status.message()), HasSubstr("injected"));
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
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  EXPECT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  EXPECT_EQ(sent_[0].completion.status.code(), absl::StatusCode::kFailedPrecondition);
  batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  EXPECT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  ExpectRight(sent_[1]);
}

TEST_F(DeviceLaneTest, EveryLaneOfABrokenDeviceRetiresAtItsNextBatch) {
  DeviceBackendOptions options = SmallOptions();
  options.lanes_per_device = 2;
  Start(options);
  device_->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  EXPECT_FALSE(lanes_[0]->Execute(std::move(batch)).ok());
  batch = std::make_unique<Batch>();
  Add(*batch, 1, 3);
  EXPECT_FALSE(lanes_[1]->Execute(std::move(batch)).ok());
  EXPECT_EQ(sent_[1].completion.status.code(), absl::StatusCode::kInternal);
}

TEST_F(DeviceLaneTest, EachDeviceHasLanesParametersAndMetricsOfItsOwnAndMayBeLostAlone) {
  metrics_ = CreateMetrics({"test", ""});
  Start(SmallOptions(), 2);
  ASSERT_EQ(lanes_.size(), 2u);
  EXPECT_EQ(lanes_[0]->device(), "fake:0");
  EXPECT_EQ(lanes_[1]->device(), "fake:1");
  const auto execute = [this](Lane& lane) {
    auto batch = std::make_unique<Batch>();
    Add(*batch, 2, 32);  // 1536 bytes.
    return lane.Execute(std::move(batch)).ok();
  };
  EXPECT_TRUE(execute(*lanes_[1]));
  EXPECT_TRUE(execute(*lanes_[1]));
  EXPECT_TRUE(execute(*lanes_[0]));
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\""), "1536");
  EXPECT_EQ(Series("normd_device_copied_bytes_total", "direction=\"in\"", "fake:1"), "3072");

  devices_[0]->FailCall(DeviceCall::kNormalize, 1, absl::InternalError("lost"), /*sticky=*/true);
  EXPECT_FALSE(execute(*lanes_[0]));
  EXPECT_TRUE(execute(*lanes_[1]));
  EXPECT_EQ(Series("normd_lanes", "state=\"retired\""), "1");
  EXPECT_EQ(Series("normd_lanes", "state=\"working\"", "fake:1"), "1");
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    if (i == 3) {
      EXPECT_EQ(sent_[i].completion.status.code(), absl::StatusCode::kInternal);
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

TEST_F(DeviceLaneTest, AModelWithAResidualIsRefusedAtItsLoad) {
  v1::ModelConfig config;
  config.mutable_add_rms_norm()->add_normalized_shape(kChannels);
  const std::shared_ptr<Model> model =
      *Model::Create("add", 1, config, {MakeParameter("weight", 1)}, metrics_->ForModel("add", 1));
  const std::int64_t before = device_->allocated_bytes();
  const auto state = backend_->Prepare(*model);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(state.status().message()),
              HasSubstr("computed on the CPU only so far, wanted a server with --device=cpu"));
  EXPECT_EQ(device_->allocated_bytes(), before);
}

TEST(DeviceBackendTest, FailsAtStartWhenTheDeviceHasNoRoom) {
  std::unique_ptr<Metrics> metrics = CreateMetrics({"test", ""});
  SteadyClock clock;
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FakeDevice>("fake:0", 1000));
  const auto backend = DeviceBackend::Create(std::move(devices), SmallOptions(), *metrics, clock);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("fake:0"));
}

}  // namespace
}  // namespace normd

// What a device's lane does with the fused layer beside the promises of lane_test.cc: its launches,
// weights and memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/exec/device/device_backend.h"
#include "server/exec/device/device_linear_norm.h"
#include "tests/server/exec/device/device_lane_fixture.h"

namespace normd {
namespace {

using norm::Precision;
using ::testing::HasSubstr;

constexpr std::int64_t kInFeatures = 7;
constexpr std::int64_t kOutFeatures = 5;

class DeviceLinearTest : public DeviceFixture {
 protected:
  DeviceLinearTest() { Start(0); }

  void Start(std::size_t mapped_bytes) {
    DeviceBackendOptions options;
    options.lanes_per_device = 2;
    options.pool_bytes = 64 << 10;
    options.lane.arena_bytes = 16 << 10;
    options.lane.chunk_bytes = 1280;
    options.lane.chunks = 2;
    options.lane.mapped_bytes = mapped_bytes;
    options.max_staged_bytes = 4096;
    DeviceFixture::Start(options);
  }

  std::shared_ptr<const Model> NewModel(const std::string& epilogue) {
    return MakeModel("layer",
                     absl::StrCat("linear_norm { in_features: ", kInFeatures,
                                  " out_features: ", kOutFeatures, " ", epilogue, " }"),
                     metrics_->ForModel("layer", 1),
                     MakeParameters({{"linear.weight", {kOutFeatures, kInFeatures}},
                                     {"linear.bias", {kOutFeatures}}}));
  }
  void LoadLayer(const std::string& epilogue = "epilogue { add: true multiply: true }") {
    Load(NewModel(epilogue));
  }
  const LinearNormProgram& Program() const {
    return std::get<LinearNormProgram>(model_->program());
  }
  LaneRequest& Add(std::int64_t samples, Precision precision = Precision::kFloat32) {
    std::vector<Dims> shapes = {{samples, kInFeatures}, {samples, kOutFeatures}};
    shapes.resize(model_->inputs().size());
    LaneRequest& request = AddRequest(shapes);
    request.request()->options.precision = precision;
    return request;
  }
};

class DeviceLinearPathTest : public DeviceLinearTest,
                             public ::testing::WithParamInterface<std::size_t> {
 protected:
  DeviceLinearPathTest() { Start(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(MappedBytes, DeviceLinearPathTest, ::testing::ValuesIn(kMappedBytes));

TEST_P(DeviceLinearPathTest, RequestsOfDifferentSizesShareALaunch) {
  for (const std::string epilogue : {"epilogue { add: true multiply: true }", ""}) {
    SCOPED_TRACE(epilogue);
    Start(GetParam());
    LoadLayer(epilogue);
    for (const std::int64_t samples : {3, 1, 17}) Add(samples);
    ExecuteAndExpectRight(/*lane=*/1);
    EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 1);
    EXPECT_EQ(device_->calls(DeviceCall::kCopyOut) == 0, GetParam() > 0);
  }
}

TEST_P(DeviceLinearPathTest, ABatchIsSplitByPrecisionAndEachPartReadsItsOwnWeights) {
  LoadLayer();
  for (const Precision precision :
       {Precision::kTf32, Precision::kFloat32, Precision::kBFloat16, Precision::kTf32,
        Precision::kFloat32Strict, Precision::kTf32}) {
    Add(2, precision);
  }
  ExecuteAndExpectRight();
  EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 4);
}

TEST_P(DeviceLinearPathTest, StagedInputsAreReadWhereTheyLie) {
  LoadLayer();
  for (const std::int64_t samples : {3, 20, 1}) Add(samples);
  Stage(sent_[1]);
  EXPECT_TRUE(sent_[1].request()->IsStaged());
  ExecuteAndExpectRight();
}

TEST_P(DeviceLinearPathTest, AFaultOfItsLaunchEndsTheBatchWithInternal) {
  LoadLayer();
  device_->FailCall(DeviceCall::kLinearNorm, 2, absl::InternalError("injected"));
  Add(2, Precision::kFloat32);
  Add(2, Precision::kTf32);
  EXPECT_EQ(Execute().code(), absl::StatusCode::kInternal);
  for (const LaneRequest& sent : sent_) {
    EXPECT_EQ(sent.done_calls(), 1);
    EXPECT_EQ(sent.code(), absl::StatusCode::kInternal);
  }
}

TEST_F(DeviceLinearTest, GoesRoundTheArenaInWavesAndThroughReusedStaging) {
  LoadLayer();
  for (int i = 0; i < 5; ++i) Add(130);  // 6240 bytes each, the arena holds two.
  ExecuteAndExpectRight();
  EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 3);
}

TEST_F(DeviceLinearTest, InputsLargerThanTheArenaFailAloneWithTheNumbers) {
  LoadLayer();
  Add(1000);  // 28000 bytes of x, 20000 of y.
  Add(1);
  ASSERT_TRUE(Execute().ok());
  EXPECT_EQ(sent_[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent_[0].completion().status.message()), HasSubstr("48000 bytes"));
  ExpectRight(sent_[1]);
}

TEST_F(DeviceLinearTest, ItsMemoryIsThatOfItsBlockAndComesBackWithTheModel) {
  const std::int64_t before = device_->allocated_bytes();
  LoadLayer();
  const LinearBlock block = MakeLinearBlock(Program().spec, *device_, 2);
  EXPECT_EQ(device_->allocated_bytes() - before, static_cast<std::int64_t>(block.bytes));
  model_.reset();
  EXPECT_EQ(device_->allocated_bytes(), before);
}

TEST_F(DeviceLinearTest, TheBlockHoldsEveryPrecisionAndAWorkspaceForEachLane) {
  norm::LinearNormSpec spec;
  spec.in_features = kInFeatures;
  spec.out_features = kOutFeatures;
  const LinearBlock block = MakeLinearBlock(spec, *device_, 3);
  const LinearSizes sizes = device_->SizesOf(spec);
  std::size_t end = 0;
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    EXPECT_EQ(block.prepared_offset[i] % 256, 0u);
    EXPECT_GE(block.prepared_offset[i], end);
    EXPECT_EQ(block.prepared_bytes[i], sizes.prepared);
    end = block.prepared_offset[i] + block.prepared_bytes[i];
  }
  EXPECT_GE(block.workspace_offset, end);
  EXPECT_EQ(block.workspace_offset % 256, 0u);
  EXPECT_EQ(block.workspace_bytes % 256, 0u);
  EXPECT_GE(block.workspace_bytes, sizes.workspace);
  EXPECT_EQ(block.bytes, block.workspace_offset + 3 * block.workspace_bytes);
}

TEST_F(DeviceLinearTest, AModelThatDoesNotFitFailsItsLoadWithTheNumbers) {
  const std::shared_ptr<const Model> model = NewModel("");
  const auto wanted = static_cast<std::int64_t>(
      MakeLinearBlock(std::get<LinearNormProgram>(model->program()).spec, *device_, 2).bytes);
  const std::int64_t free = wanted - 1;
  const Buffer taken = *device_->Allocate(
      MemoryKind::kDevice, static_cast<std::size_t>(device_->MemoryInfo()->free_bytes - free));
  const absl::Status status = backend_->Prepare(*model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("linear_norm: weights in every precision and 2 lanes' "
                                     "workspace on fake:0: device memory: wanted ",
                                     wanted, " bytes, free ", free)));
}

TEST_F(DeviceLinearTest, AFaultOfThePreparationFailsTheLoad) {
  device_->FailCall(DeviceCall::kPrepareLinear, 3, absl::InternalError("injected"));
  const std::shared_ptr<const Model> model = NewModel("");
  const std::int64_t before = device_->allocated_bytes();
  EXPECT_EQ(backend_->Prepare(*model).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(device_->allocated_bytes(), before);
}

}  // namespace
}  // namespace normd

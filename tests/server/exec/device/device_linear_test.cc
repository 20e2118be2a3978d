// The fused layer on a device lane.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "server/exec/device/device_backend.h"
#include "server/exec/device/device_linear_norm.h"
#include "tests/support/fake_device.h"
#include "tests/support/models.h"

namespace normd {
namespace {

using norm::Precision;
using ::testing::HasSubstr;

constexpr std::int64_t kInFeatures = 7;
constexpr std::int64_t kOutFeatures = 5;

class DeviceLinearTest : public ::testing::Test {
 protected:
  struct Sent {
    std::vector<float> x;
    std::vector<float> y;
    std::int64_t samples = 0;
    int done = 0;
    Completion completion;
  };

  DeviceLinearTest() { Start(0); }

  ~DeviceLinearTest() override {
    lanes_.clear();
    model_.reset();
  }

  void Start(std::size_t mapped_bytes) {
    lanes_.clear();
    model_.reset();
    DeviceBackendOptions options;
    options.lanes_per_device = 2;
    options.pool_bytes = 64 << 10;
    options.lane.arena_bytes = 16 << 10;
    options.lane.chunk_bytes = 1280;
    options.lane.chunks = 2;
    options.lane.mapped_bytes = mapped_bytes;
    options.max_staged_bytes = 4096;
    auto device = std::make_unique<FakeDevice>("fake:0", 1 << 20);
    device_ = device.get();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::move(device));
    backend_ = *DeviceBackend::Create(std::move(devices), options, *metrics_, clock_);
    lanes_ = backend_->MakeLanes();
  }

  std::vector<float> Normal(std::int64_t count) {
    std::normal_distribution<float> normal(1, 2);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }

  std::shared_ptr<const Model> NewModel(const std::string& epilogue) {
    Parameter weight = MakeParameter("linear.weight", Normal(kInFeatures * kOutFeatures));
    weight.shape = *Shape::Create({kOutFeatures, kInFeatures});
    return MakeModel("layer",
                     absl::StrCat("linear_norm { in_features: ", kInFeatures,
                                  " out_features: ", kOutFeatures, " ", epilogue, " }"),
                     metrics_->ForModel("layer", 1),
                     {weight, MakeParameter("linear.bias", Normal(kOutFeatures))});
  }

  void Load(const std::string& epilogue = "epilogue { add: true multiply: true }") {
    model_ = NewModel(epilogue);
    auto state = backend_->Prepare(*model_);
    ASSERT_TRUE(state.ok()) << state.status();
    const_cast<Model&>(*model_).set_backend_state(*std::move(state));
  }

  const LinearNormProgram& Program() const {
    return std::get<LinearNormProgram>(model_->program());
  }
  bool HasY() const { return model_->inputs().size() > 1; }

  // In slices of odd lengths.
  void AddInput(Request& request, const std::vector<float>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    const std::size_t size = values.size() * sizeof(float);
    ByteViews& views = request.inputs.emplace_back().views;
    for (std::size_t at = 0; at < size;) {
      const std::size_t part = std::min<std::size_t>(size - at, random_() % 77 + 1);
      views.emplace_back(bytes + at, part);
      at += part;
    }
  }

  void Add(Batch& batch, std::int64_t samples, Precision precision = Precision::kFloat32) {
    Sent& sent = sent_.emplace_back();
    sent.samples = samples;
    sent.x = Normal(samples * kInFeatures);
    std::vector<TensorType> types(1);
    types[0].shape = *Shape::Create({samples, kInFeatures});
    if (HasY()) {
      sent.y = Normal(samples * kOutFeatures);
      types.emplace_back().shape = *Shape::Create({samples, kOutFeatures});
    }
    auto request = std::make_unique<Request>();
    request->id = sent_.size();
    request->model = model_;
    request->options.precision = precision;
    request->geometry = *model_->Check(types);
    AddInput(*request, sent.x);
    if (HasY()) AddInput(*request, sent.y);
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    batch.model = model_;
    batch.requests.push_back(std::move(request));
  }

  void ExpectRight(const Sent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    const auto count = static_cast<std::size_t>(sent.samples * kOutFeatures);
    ASSERT_EQ(sent.completion.outputs[0].size(), count * sizeof(float));
    std::vector<double> expected(count);
    const norm::Status status = norm::LinearNormReference(
        Program().spec, Program().params,
        {sent.x.data(), HasY() ? sent.y.data() : nullptr, nullptr, sent.samples}, expected.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < count; ++i) {
      float out = 0;
      std::memcpy(&out, sent.completion.outputs[0].data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(out, static_cast<float>(expected[i])) << "element " << i;
    }
  }

  SteadyClock clock_;
  std::unique_ptr<Metrics> metrics_ = CreateMetrics({"test", ""});
  FakeDevice* device_ = nullptr;
  std::unique_ptr<DeviceBackend> backend_;
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<Sent> sent_;
  std::mt19937 random_{5};
};

TEST_F(DeviceLinearTest, RequestsOfDifferentSizesShareALaunchOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    for (const std::string epilogue : {"epilogue { add: true multiply: true }", ""}) {
      SCOPED_TRACE(absl::StrCat(mapped_bytes, " ", epilogue));
      Start(mapped_bytes);
      Load(epilogue);
      sent_.clear();
      auto batch = std::make_unique<Batch>();
      for (const std::int64_t samples : {3, 1, 0, 17}) Add(*batch, samples);
      ASSERT_TRUE(lanes_[1]->Execute(std::move(batch)).ok());
      for (const Sent& sent : sent_) ExpectRight(sent);
      EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 1);
      EXPECT_EQ(device_->calls(DeviceCall::kCopyOut) == 0, mapped_bytes > 0);
    }
  }
}

TEST_F(DeviceLinearTest, ABatchIsSplitByPrecisionAndEachPartReadsItsOwnWeights) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    Start(mapped_bytes);
    Load();
    sent_.clear();
    auto batch = std::make_unique<Batch>();
    for (const Precision precision :
         {Precision::kTf32, Precision::kFloat32, Precision::kBFloat16, Precision::kTf32,
          Precision::kFloat32Strict, Precision::kTf32}) {
      Add(*batch, 2, precision);
    }
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    for (const Sent& sent : sent_) ExpectRight(sent);
    EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 4);
  }
}

TEST_F(DeviceLinearTest, StagedInputsAreReadWhereTheyLieOnEitherPath) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    Start(mapped_bytes);
    Load();
    sent_.clear();
    auto batch = std::make_unique<Batch>();
    for (const std::int64_t samples : {3, 20, 1}) Add(*batch, samples);
    backend_->stager()->Stage(*batch->requests[1]);
    EXPECT_TRUE(batch->requests[1]->IsStaged());
    ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
    for (const Sent& sent : sent_) ExpectRight(sent);
  }
}

TEST_F(DeviceLinearTest, GoesRoundTheArenaInWavesAndThroughReusedStaging) {
  Load();
  auto batch = std::make_unique<Batch>();
  for (int i = 0; i < 5; ++i) Add(*batch, 130);  // 6240 bytes each, the arena holds two.
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  for (const Sent& sent : sent_) ExpectRight(sent);
  EXPECT_EQ(device_->calls(DeviceCall::kLinearNorm), 3);
}

TEST_F(DeviceLinearTest, InputsLargerThanTheArenaFailAloneWithTheNumbers) {
  Load();
  auto batch = std::make_unique<Batch>();
  Add(*batch, 1000);  // 28000 bytes of x, 20000 of y.
  Add(*batch, 1);
  ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
  EXPECT_EQ(sent_[0].completion.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent_[0].completion.status.message()), HasSubstr("48000 bytes"));
  ExpectRight(sent_[1]);
}

TEST_F(DeviceLinearTest, AFaultOfItsLaunchEndsTheBatchWithInternal) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    Start(mapped_bytes);
    Load();
    sent_.clear();
    device_->FailCall(DeviceCall::kLinearNorm, 2, absl::InternalError("injected"));
    auto batch = std::make_unique<Batch>();
    Add(*batch, 2, Precision::kFloat32);
    Add(*batch, 2, Precision::kTf32);
    EXPECT_EQ(lanes_[0]->Execute(std::move(batch)).code(), absl::StatusCode::kInternal);
    for (const Sent& sent : sent_) {
      EXPECT_EQ(sent.done, 1);
      EXPECT_EQ(sent.completion.status.code(), absl::StatusCode::kInternal);
    }
  }
}

TEST_F(DeviceLinearTest, ItsMemoryIsThatOfItsBlockAndComesBackWithTheModel) {
  const std::int64_t before = device_->allocated_bytes();
  Load();
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

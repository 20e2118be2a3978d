// The CPU lane on a fused layer: two inputs of other sizes than the output.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <tuple>
#include <variant>
#include <vector>

#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::testing::Data;
using norm::testing::Tensor;
using norm::testing::TestSeed;
using ::testing::HasSubstr;

constexpr std::int64_t kIn = 19;
constexpr std::int64_t kOut = 37;

std::vector<float> Values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.25F);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::shared_ptr<const Model> MakeLayer(const std::string& epilogue, ModelMetrics& metrics,
                                       const norm::cpu::Executor& kernels) {
  Parameter weight = MakeParameter("linear.weight", Values(kIn * kOut, 1));
  weight.shape = *Shape::Create({kOut, kIn});
  v1::ModelConfig config;
  v1::LinearNorm& layer = *config.mutable_linear_norm();
  layer.set_in_features(kIn);
  layer.set_out_features(kOut);
  layer.mutable_epilogue()->set_add(epilogue == "y");
  layer.mutable_epilogue()->set_multiply(epilogue == "y");
  std::shared_ptr<Model> model =
      *Model::Create("layer", 1, config, {weight, MakeParameter("linear.bias", Values(kOut, 2))},
                     std::shared_ptr<ModelMetrics>(std::shared_ptr<void>(), &metrics));
  return OnCpu(model, kernels);
}

enum class LinearSplit { kOnePiece, kMisaligned, kPieces };

class CpuLinearTest : public CpuLaneFixture {
 protected:
  struct Sent {
    Sent(norm::DType dtype, std::int64_t samples_of, std::uint64_t seed)
        : samples(samples_of), x(dtype, samples * kIn), y(dtype, samples * kOut) {
      x.Fill(Data::kNormal, TestSeed() + seed);
      y.Fill(Data::kNormal, TestSeed() + seed + 1);
    }
    std::int64_t samples;
    Tensor x;
    Tensor y;
    int done = 0;
    Completion completion;
    std::weak_ptr<void> owner;
  };

  static ByteViews ViewsOf(const Tensor& tensor, LinearSplit split,
                           std::vector<std::byte>& memory) {
    const auto* data = static_cast<const std::byte*>(tensor.data());
    memory.resize(tensor.bytes() + 2);
    std::byte* to = memory.data() + (split == LinearSplit::kMisaligned ? 1 : 0);
    std::memcpy(to, data, tensor.bytes());
    if (split != LinearSplit::kPieces || tensor.bytes() < 4) return {{to, tensor.bytes()}};
    // The second piece lies apart.
    const std::size_t cut = tensor.bytes() / 3;
    std::memmove(to + cut + 2, data + cut, tensor.bytes() - cut);
    return {{to, cut}, {to + cut + 2, tensor.bytes() - cut}};
  }

  std::unique_ptr<Request> MakeRequest(Sent& sent, LinearSplit split) {
    auto request = std::make_unique<Request>();
    request->model = model_;
    request->dtype = sent.x.dtype();
    std::vector<TensorType> types = {{sent.x.dtype(), *Shape::Create({sent.samples, kIn})},
                                     {sent.x.dtype(), *Shape::Create({sent.samples, kOut})}};
    types.resize(model_->inputs().size());
    request->geometry = *model_->Check(types);
    auto memory = std::make_shared<std::vector<std::vector<std::byte>>>(2);
    request->inputs.push_back({ViewsOf(sent.x, split, (*memory)[0]), {}});
    if (types.size() > 1) request->inputs.push_back({ViewsOf(sent.y, split, (*memory)[1]), {}});
    sent.owner = memory;
    request->input_owner = std::move(memory);
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    return request;
  }

  void ExpectRight(const Sent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    const auto& program = std::get<LinearNormProgram>(model_->program());
    norm::LinearNormSpec spec = program.spec;
    spec.dtype = sent.x.dtype();
    const Tensor out = OutputOf(sent.completion, 0, sent.y);
    std::vector<double> expected(static_cast<std::size_t>(out.count()));
    const norm::Status status = norm::LinearNormReference(
        spec, program.params,
        {sent.x.data(), spec.epilogue.needs_y() ? sent.y.data() : nullptr, nullptr, sent.samples},
        expected.data());
    ASSERT_TRUE(status.ok()) << status.message();
    norm::testing::Tolerance tolerance = norm::testing::TightTolerance(spec.dtype);
    tolerance.absolute = 2e-5;
    EXPECT_EQ(norm::testing::Compare(out, expected, tolerance), "");
  }

  std::shared_ptr<const Model> model_ = MakeLayer("y", metrics_, kernels_);
};

TEST_F(CpuLinearTest, ComputesTheReferencesResultHoweverTheInputsLie) {
  for (const norm::DType dtype :
       {norm::DType::kFloat32, norm::DType::kFloat16, norm::DType::kBFloat16}) {
    for (const LinearSplit split :
         {LinearSplit::kOnePiece, LinearSplit::kMisaligned, LinearSplit::kPieces}) {
      SCOPED_TRACE(::testing::Message() << norm::Name(dtype) << " " << static_cast<int>(split));
      Sent sent(dtype, 5, 1);
      Run(MakeRequest(sent, split));
      ExpectRight(sent);
      EXPECT_TRUE(sent.owner.expired());
    }
  }
}

TEST_F(CpuLinearTest, RequestsOfDifferentSizesShareABatchAndKeepTheirBits) {
  const std::int64_t sizes[] = {1, 70, 3, 0, 1, 64, 2};
  std::deque<Sent> together;
  std::vector<std::unique_ptr<Request>> requests;
  for (const std::int64_t samples : sizes) {
    together.emplace_back(norm::DType::kFloat32, samples, 10 * together.size());
    const auto split = static_cast<LinearSplit>(together.size() % 3);
    requests.push_back(MakeRequest(together.back(), split));
  }
  Run(std::move(requests));
  EXPECT_EQ(metrics_.batches, 1);
  EXPECT_EQ(metrics_.batch_requests, 7);
  for (std::size_t i = 0; i < together.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectRight(together[i]);
    Sent alone(norm::DType::kFloat32, sizes[i], 10 * i);
    Run(MakeRequest(alone, LinearSplit::kOnePiece));
    const Buffer& output = alone.completion.outputs[0];
    ASSERT_EQ(output.size(), together[i].completion.outputs[0].size());
    if (output.size() == 0) continue;
    EXPECT_EQ(std::memcmp(output.data(), together[i].completion.outputs[0].data(), output.size()),
              0);
  }
}

TEST_F(CpuLinearTest, ComputesALayerWithoutASecondInput) {
  model_ = MakeLayer("none", metrics_, kernels_);
  Sent sent(norm::DType::kFloat32, 4, 2);
  Run(MakeRequest(sent, LinearSplit::kPieces));
  ExpectRight(sent);
}

TEST_F(CpuLinearTest, WritesToTheMemoryThatTheRequestNamesAlsoOverItsOwnY) {
  Sent sent(norm::DType::kFloat32, 4, 3);
  Tensor out(norm::DType::kFloat32, 4 * kOut);
  out.CopyFrom(sent.y);
  auto* data = static_cast<std::byte*>(out.data());
  std::unique_ptr<Request> request = MakeRequest(sent, LinearSplit::kOnePiece);
  request->inputs[1].views = {{data, out.bytes()}};
  request->outputs = {{{data, out.bytes()}, {}}};
  Run(std::move(request));
  ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
  Sent again(norm::DType::kFloat32, 4, 3);
  Run(MakeRequest(again, LinearSplit::kOnePiece));
  EXPECT_EQ(std::memcmp(again.completion.outputs[0].data(), data, out.bytes()), 0);
}

TEST_F(CpuLinearTest, ARequestWithoutItsSecondInputFailsAlone) {
  Sent good(norm::DType::kFloat32, 2, 4);
  Sent bad(norm::DType::kFloat32, 2, 5);
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(MakeRequest(bad, LinearSplit::kOnePiece));
  requests.back()->inputs.pop_back();
  requests.push_back(MakeRequest(good, LinearSplit::kOnePiece));
  Run(std::move(requests));
  EXPECT_EQ(bad.completion.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(bad.completion.status.message()),
              HasSubstr("inputs[1]: 0 bytes, wanted the tensor's 296"));
  ExpectRight(good);
}

}  // namespace
}  // namespace normd

// The fused layer's config, parameters and inputs as the model checks them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "operations/kernel_program.h"
#include "operations/operation.h"
#include "server/model/model.h"
#include "tests/server/model/model_fixture.h"

namespace normd::testing {
namespace {

using norm::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTwoInputs[] =
    "linear_norm { in_features: 3 out_features: 5 epilogue { add: true multiply: true } }";
constexpr char kPlain[] = "linear_norm { in_features: 3 out_features: 5 bias: false }";

class LinearModelTest : public ModelFixture {
 protected:
  std::shared_ptr<Model> Layer() {
    return *Create(kTwoInputs, {ZeroParameter("linear.weight", {5, 3}, DType::kBFloat16),
                                ZeroParameter("linear.bias", {5})});
  }
  static TensorType Type(const std::vector<std::int64_t>& dims, DType dtype = DType::kFloat32) {
    return {dtype, *Shape::Create(dims)};
  }
  static std::vector<absl::string_view> NamesOf(absl::Span<const TensorSignature> tensors) {
    std::vector<absl::string_view> names;
    for (const TensorSignature& tensor : tensors) names.push_back(tensor.name);
    return names;
  }
  static std::string CheckError(const Model& model, const std::vector<TensorType>& inputs) {
    const absl::Status status = model.Check(inputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
};

TEST_F(LinearModelTest, KnowsItsLayerInputsAndParameters) {
  const auto model = Layer();
  const auto* program = std::get_if<LinearNormProgram>(&model->program());
  ASSERT_NE(program, nullptr);
  EXPECT_EQ(program->spec.in_features, 3);
  EXPECT_EQ(program->spec.out_features, 5);
  EXPECT_EQ(program->spec.eps, 1e-5);
  EXPECT_TRUE(program->spec.epilogue.add && program->spec.epilogue.multiply);
  EXPECT_EQ(program->spec.precision, norm::Precision::kFloat32);
  EXPECT_THAT(NamesOf(model->inputs()), ElementsAre("x", "y"));
  EXPECT_EQ(program->params.weight.data, model->parameters()[0].data.get());
  EXPECT_EQ(program->params.weight.dtype, DType::kBFloat16);
  EXPECT_EQ(program->params.bias.data, model->parameters()[1].data.get());

  const auto plain =
      *Create(std::string(kPlain) + " activation: SILU", {ZeroParameter("linear.weight", {5, 3})});
  const auto& plain_program = std::get<LinearNormProgram>(plain->program());
  EXPECT_THAT(NamesOf(plain->inputs()), ElementsAre("x"));
  EXPECT_EQ(plain_program.spec.epilogue.activation, norm::Activation::kSilu);
  EXPECT_EQ(plain_program.params.bias.data, nullptr);
}

TEST_F(LinearModelTest, RefusesAConfigThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"linear_norm { out_features: 5 }", "linear_norm.in_features: 0, wanted 1 to 2147483648"},
      {"linear_norm { in_features: 3 out_features: -1 }", "linear_norm.out_features: -1"},
      {"linear_norm { in_features: 2147483648 out_features: 2147483648 }",
       "linear_norm: in_features 2147483648 times out_features 2147483648, wanted at most"},
      {"linear_norm { in_features: 3 out_features: 5 eps: -1 }", "linear_norm.eps: -1"},
      {"linear_norm { in_features: 3 out_features: 5 precision: 9 }",
       "linear_norm.precision: 9, wanted PRECISION_FLOAT32"},
      {"linear_norm { in_features: 3 out_features: 5 } layout: CHANNELS_LAST", "layout"},
      {"linear_norm { in_features: 3 out_features: 5 } dtypes: FLOAT64",
       "dtypes[0]: FLOAT64, wanted FLOAT32, FLOAT16 or BFLOAT16"}};
  for (const auto& [config, message] : cases) {
    EXPECT_THAT(CreateError(config, {}), HasSubstr(message));
  }
}

TEST_F(LinearModelTest, RefusesParametersThatDoNotMatch) {
  EXPECT_EQ(
      CreateError(kTwoInputs, {ZeroParameter("linear.bias", {5})}),
      "parameter linear.weight: missing, wanted shape [5, 3]; the file has linear.bias F32 [5]");
  EXPECT_EQ(CreateError(kTwoInputs, {ZeroParameter("linear.weight", {3, 5}),
                                     ZeroParameter("linear.bias", {5})}),
            "parameter linear.weight: shape [3, 5], wanted [5, 3]");
  EXPECT_EQ(
      CreateError(kTwoInputs, {ZeroParameter("linear.weight", {5, 3})}),
      "parameter linear.bias: missing, wanted shape [5]; the file has linear.weight F32 [5, 3]");
  EXPECT_EQ(CreateError(kTwoInputs, {ZeroParameter("linear.weight", {5, 3}),
                                     ZeroParameter("linear.bias", {3})}),
            "parameter linear.bias: shape [3], wanted [5]");
  EXPECT_THAT(CreateError(kPlain, {ZeroParameter("linear.weight", {5, 3}),
                                   ZeroParameter("linear.bias", {5})}),
              HasSubstr("parameter linear.bias: present, but the config does not use it"));
}

TEST_F(LinearModelTest, DividesInputsOfAnyLeadingDimensions) {
  const auto model = Layer();
  const auto geometry = model->Check({Type({2, 4, 3}), Type({2, 4, 5})});
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->samples, 8);
  EXPECT_EQ(geometry->rows, 8);
  EXPECT_EQ(geometry->OutputBytes(), 8 * 5 * 4);
  EXPECT_THAT(geometry->inputs, ElementsAre(TensorSize{8 * 3 * 4}, TensorSize{8 * 5 * 4}));
  EXPECT_THAT(geometry->outputs, ElementsAre(TensorSize{8 * 5 * 4}));
  EXPECT_EQ(geometry->LargerBytes(), 8 * 8 * 4);
  EXPECT_THAT(model->Outputs({Type({2, 4, 3}), Type({2, 4, 5})})[0].shape.dims(),
              ElementsAre(2, 4, 5));

  const auto one = model->Check({Type({3}, DType::kFloat16), Type({5}, DType::kFloat16)});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->samples, 1);
  EXPECT_EQ(one->OutputBytes(), 10);
  const auto none = model->Check({Type({0, 3}), Type({0, 5})});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->InputBytes() + none->OutputBytes(), 0);
}

TEST_F(LinearModelTest, RefusesInputsThatDoNotFit) {
  const auto model = Layer();
  EXPECT_EQ(CheckError(*model, {Type({2, 4}), Type({2, 5})}),
            "input \"x\": shape: [2, 4], wanted [*, 3]");
  EXPECT_EQ(CheckError(*model, {Type({}), Type({})}), "input \"x\": shape: [], wanted [*, 3]");
  EXPECT_EQ(CheckError(*model, {Type({2, 3}), Type({3, 5})}),
            "input \"y\": shape: [3, 5], wanted [2, 5] for \"x\" of [2, 3]");
  EXPECT_EQ(CheckError(*model, {Type({2, 3}), Type({2, 3})}),
            "input \"y\": shape: [2, 3], wanted [2, 5] for \"x\" of [2, 3]");
  EXPECT_EQ(CheckError(*model, {Type({2, 3}), Type({10})}),
            "input \"y\": shape: [10], wanted [2, 5] for \"x\" of [2, 3]");
  EXPECT_EQ(CheckError(*model, {Type({2, 3}), Type({2, 5}, DType::kFloat16)}),
            "input \"y\": dtype: float16, wanted float32 as of \"x\"");
  EXPECT_EQ(CheckError(*model, {Type({2, 3}, DType::kFloat64), Type({2, 5}, DType::kFloat64)}),
            "input \"x\": dtype: FLOAT64, wanted FLOAT32, FLOAT16 or BFLOAT16");
}

TEST_F(LinearModelTest, RefusesBytesBeyond63Bits) {
  const auto model = Layer();
  // x and y fit by themselves, not together with the output.
  constexpr std::int64_t kSamples = std::int64_t{1} << 58;
  EXPECT_THAT(CheckError(*model, {Type({kSamples, 3}), Type({kSamples, 5})}),
              HasSubstr("has over 2^63 bytes"));
  // Empty, and yet no way around the limit for what follows.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 3;
  EXPECT_THAT(CheckError(*model, {Type({0, kMost, 3}), Type({0, 5})}),
              HasSubstr("output: shape: [0, 3074457345618258602, 5] has more than 2^63 elements"));
}

}  // namespace
}  // namespace normd::testing

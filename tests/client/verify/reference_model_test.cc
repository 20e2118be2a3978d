#include "client/verify/reference_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/tensor/random.h"
#include "google/protobuf/text_format.h"
#include "kernels/reference.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

v1::ModelConfig Config(const std::string& text) {
  v1::ModelConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

Tensor Of(std::vector<std::int64_t> dims, const std::vector<double>& values) {
  Tensor tensor = Tensor::Allocate(norm::DType::kFloat64, Shape::Create(dims).value()).value();
  for (std::size_t i = 0; i < values.size(); ++i) {
    norm::StoreElement(norm::DType::kFloat64, tensor.mutable_bytes().data(),
                       static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

absl::StatusOr<ReferenceModel> Make(const std::string& config,
                                    const std::map<std::string, Tensor>& parameters = {}) {
  return ReferenceModel::Create(Config(config), test::ParametersOf(parameters));
}

std::vector<double> Outputs(const std::string& config,
                            const std::map<std::string, Tensor>& parameters, const Tensor& x) {
  const auto model = Make(config, parameters);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto outputs = model->Compute({x.named()});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->size(), 1U);
  return outputs->front().elements;
}

const char kInstance[] = "instance_norm { channels: 2 eps: 0 affine: true }";

TEST(ReferenceModelTest, LinearNormTakesASecondInput) {
  // z = {1, 3}, normalized {-1, 1}.
  const auto model = Make(
      "linear_norm { in_features: 3 out_features: 2 eps: 0 "
      "epilogue { add: true multiply: true } }",
      {{"linear.weight", Of({2, 3}, {1, 0, 0, 0, 1, 1})}, {"linear.bias", Of({2}, {0, 1})}});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tensor = [](std::vector<std::int64_t> dims, const std::vector<double>& values) {
    Tensor out = Tensor::Allocate(norm::DType::kFloat32, Shape::Create(dims).value()).value();
    for (std::size_t i = 0; i < values.size(); ++i) {
      norm::StoreElement(norm::DType::kFloat32, out.mutable_bytes().data(),
                         static_cast<std::int64_t>(i), values[i]);
    }
    return out;
  };
  const Tensor x = tensor({1, 3}, {1, 0, 2});
  const Tensor y = tensor({1, 2}, {3, 5});
  const std::vector<NamedTensor> inputs = {x.named("x"), y.named("y")};
  const std::vector<NamedTensor> turned = {y.named("y"), x.named("x")};
  for (const auto& in_any_order : {inputs, turned}) {
    const auto out = model->Compute(in_any_order);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_THAT(out->front().elements, Pointwise(DoubleNear(1e-12), {6.0, 30.0}));
    EXPECT_EQ(out->front().spec.shape.ToString(), "[1, 2]");
  }
  const auto outputs = model->Outputs({x.spec("x"), y.spec("y")});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->front().shape.ToString(), "[1, 2]");
  const auto error = [&](const std::vector<NamedTensor>& wrong) {
    return std::string(model->Compute(wrong).status().message());
  };
  EXPECT_THAT(error({x.named("x")}), HasSubstr("inputs: \"y\" is missing"));
  EXPECT_THAT(error({x.named("x"), x.named("y")}),
              HasSubstr("input \"y\": shape: [1, 3], wanted [1, 2]"));
  EXPECT_THAT(error({x.named("x"), y.named("y"), y.named("z")}),
              HasSubstr("inputs[2].name: \"z\", wanted \"x\" and \"y\""));
  EXPECT_THAT(error({x.named("x"), y.named("y"), y.named("y")}), HasSubstr("\"y\" twice"));
  EXPECT_THAT(error({}), HasSubstr("\"x\" is missing"));
  EXPECT_THAT(error({Of({1, 3}, {1, 0, 2}).named("x"), y.named("y")}),
              HasSubstr("dtype: float64, wanted FLOAT32, FLOAT16 or BFLOAT16"));
}

TEST(ReferenceModelTest, AddRmsNormRoundsTheSumThatItNormalizesAndGives) {
  const auto model =
      Make("add_rms_norm { normalized_shape: [2, 1] eps: 0 }", {{"weight", Of({2, 1}, {10, 1})}})
          .value();
  const auto tensor = [](const std::vector<double>& values) {
    Tensor out = Tensor::Allocate(norm::DType::kFloat16, Shape::Create({1, 2, 1}).value()).value();
    for (std::size_t i = 0; i < values.size(); ++i) {
      norm::StoreElement(norm::DType::kFloat16, out.mutable_bytes().data(),
                         static_cast<std::int64_t>(i), values[i]);
    }
    return out;
  };
  // 2048 + 1 is no float16: it is 2048 for what follows too.
  const Tensor x = tensor({2048, -2048});
  const Tensor residual = tensor({1, 0});
  const auto outputs = model.Compute({x.named("x"), residual.named("residual")});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_EQ(outputs->size(), 2U);
  EXPECT_EQ((*outputs)[0].spec.name, "y");
  EXPECT_THAT((*outputs)[0].elements, Pointwise(DoubleNear(1e-12), {10.0, -1.0}));
  EXPECT_EQ((*outputs)[1].spec.name, "residual_out");
  EXPECT_THAT((*outputs)[1].elements, Pointwise(DoubleNear(0), {2048.0, -2048.0}));
  const auto specs = model.Outputs({residual.spec("residual"), x.spec("x")});
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_EQ(specs->at(1).name, "residual_out");
  EXPECT_EQ(specs->at(1).shape.ToString(), "[1, 2, 1]");
  const Tensor other =
      Tensor::Allocate(norm::DType::kFloat16, Shape::Create({2, 2, 1}).value()).value();
  EXPECT_THAT(
      std::string(model.Compute({x.named("x"), other.named("residual")}).status().message()),
      HasSubstr("input \"residual\": shape: [2, 2, 1], wanted [1, 2, 1]"));
  EXPECT_THAT(std::string(model.Compute({x.named("x")}).status().message()),
              HasSubstr("\"residual\" is missing"));
}

TEST(ReferenceModelTest, RmsNormWithoutEpsTakesTheMachineEpsilonOfTheInput) {
  const std::string config = "rms_norm { normalized_shape: 2 affine: false }";
  // PyTorch 2.11 gives 0.9999999998889777 for float64 and 0.94524479 for float32 and below.
  const auto doubles = Outputs(config, {}, Of({1, 2}, {1e-3, 1e-3}));
  EXPECT_NEAR(doubles[0], 0.9999999998889777, 1e-15);
  const auto model = Make(config).value();
  for (const norm::DType dtype :
       {norm::DType::kFloat32, norm::DType::kFloat16, norm::DType::kBFloat16}) {
    Tensor x = Tensor::Allocate(dtype, Shape::Create({1, 2}).value()).value();
    for (const int i : {0, 1}) norm::StoreElement(dtype, x.mutable_bytes().data(), i, 1e-3);
    EXPECT_NEAR(model.Compute({x.named()}).value()[0].elements[0], 0.94524479, 2e-4)
        << norm::Name(dtype);
  }
}

TEST(ReferenceModelTest, RefusesParametersThatDoNotFit) {
  const auto error = [](const std::string& config,
                        const std::map<std::string, Tensor>& parameters) {
    return std::string(Make(config, parameters).status().message());
  };
  EXPECT_THAT(error(kInstance, {}), HasSubstr("parameter weight: missing"));
  EXPECT_THAT(error(kInstance, {{"weight", Of({3}, {1, 1, 1})}}),
              HasSubstr("parameter weight: shape [3], wanted [2]"));
  EXPECT_THAT(error("", {}), HasSubstr("operation: missing"));
  EXPECT_FALSE(error("group_norm { channels: 3 groups: 2 affine: false }", {}).empty());
  EXPECT_FALSE(error("layer_norm { normalized_shape: -2 affine: false }", {}).empty());
}

TEST(ReferenceModelTest, RefusesInputsThatDoNotFit) {
  const auto model = Make("instance_norm { channels: 2 }").value();
  EXPECT_FALSE(model.Compute({Of({1, 3, 1}, {1, 2, 3}).named()}).ok());
  EXPECT_FALSE(model.Compute({Of({2}, {1, 2}).named()}).ok());
  const Tensor right = Of({1, 2, 1}, {1, 2});
  NamedTensor cut = right.named();
  cut.tensor.bytes = cut.tensor.bytes.first(8);
  EXPECT_THAT(std::string(model.Compute({cut}).status().message()), HasSubstr("wanted 16"));
  const auto layer = Make("layer_norm { normalized_shape: 2 affine: false }").value();
  EXPECT_FALSE(layer.Compute({Of({1, 3}, {1, 2, 3}).named()}).ok());
}

TEST(ReferenceModelTest, LoadsFromARepository) {
  const test::TempFolder folder;
  const std::map<std::string, Tensor> parameters = test::AffineParameters(2);
  test::WriteModel(folder.path(), "m", Config(kInstance), parameters);
  const auto loaded = ReferenceModel::Load(folder.path(), "m", 1);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tensor x = Of({1, 2, 2}, {1, 3, 2, 8});
  EXPECT_EQ(loaded->Compute({x.named()}).value()[0].elements, Outputs(kInstance, parameters, x));
  EXPECT_EQ(ReferenceModel::Load(folder.path(), "m", 2).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReferenceModel::Load(folder.path(), "n", 1).status().code(),
            absl::StatusCode::kNotFound);
  test::WriteFile(folder.File("m/1/params.safetensors"), "no header");
  EXPECT_THAT(std::string(ReferenceModel::Load(folder.path(), "m", 1).status().message()),
              HasSubstr("m/1/params.safetensors: "));
  test::WriteFile(folder.File("m/config.textproto"), "instance_norm {");
  EXPECT_EQ(ReferenceModel::Load(folder.path(), "m", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd::client

#include "client/verify/reference_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/tensor/random.h"
#include "client/verify/reference_operations.h"
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

std::vector<double> Outputs(const std::string& config, std::map<std::string, Tensor> parameters,
                            const Tensor& x) {
  const auto model = ReferenceModel::Create(Config(config), std::move(parameters));
  EXPECT_TRUE(model.ok()) << model.status();
  const auto outputs = model->Compute({x.named()});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->size(), 1U);
  return outputs->front().elements;
}

// Expected values are worked out by hand: mean 2 and variance 1 of {1, 3}, eps 0.
const char kInstance[] = "instance_norm { channels: 2 eps: 0 affine: true }";

TEST(ReferenceModelTest, InstanceNormUsesItsParameters) {
  const auto y = Outputs(kInstance, {{"weight", Of({2}, {10, 1})}, {"bias", Of({2}, {0, 5})}},
                         Of({1, 2, 2}, {1, 3, 1, 3}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {-10.0, 10.0, 4.0, 6.0}));
}

TEST(ReferenceModelTest, InstanceNormWithoutAffineIgnoresParameters) {
  const auto y = Outputs("instance_norm { channels: 2 eps: 0 }", {{"weight", Of({2}, {10, 1})}},
                         Of({1, 2, 2}, {1, 3, 1, 3}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {-1.0, 1.0, -1.0, 1.0}));
}

TEST(ReferenceModelTest, RunningStatisticsReplaceTheRowsOwn) {
  const auto y = Outputs("instance_norm { channels: 1 eps: 0 use_running_stats: true }",
                         {{"running_mean", Of({1}, {1})}, {"running_var", Of({1}, {4})}},
                         Of({1, 1, 2}, {1, 3}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {0.0, 1.0}));
}

TEST(ReferenceModelTest, LinearNormTakesASecondInput) {
  // z = {1, 3}, normalized {-1, 1}.
  const auto model = ReferenceModel::Create(
      Config("linear_norm { in_features: 3 out_features: 2 eps: 0 "
             "epilogue { add: true multiply: true } }"),
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
  EXPECT_THAT(error({x.named("x")}), HasSubstr("y: missing"));
  EXPECT_THAT(error({x.named("x"), x.named("y")}),
              HasSubstr("y: float32 [1, 3], wanted float32 [1, 2]"));
  EXPECT_THAT(error({x.named("x"), y.named("y"), y.named("z")}), HasSubstr("z: present"));
  EXPECT_THAT(error({x.named("x"), y.named("y"), y.named("y")}), HasSubstr("y: present twice"));
  EXPECT_THAT(error({}), HasSubstr("x: missing"));
}

TEST(ReferenceModelTest, AddRmsNormRoundsTheSumThatItNormalizesAndGives) {
  const auto model =
      ReferenceModel::Create(Config("add_rms_norm { normalized_shape: [2, 1] eps: 0 }"),
                             {{"weight", Of({2, 1}, {10, 1})}})
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
      HasSubstr("residual: float16 [2, 2, 1], wanted float16 [1, 2, 1]"));
  EXPECT_THAT(std::string(model.Compute({x.named("x")}).status().message()),
              HasSubstr("residual: missing"));
}

// The server's operations and the reference's are two tables.
TEST(ReferenceModelTest, KnowsEveryOperationOfTheSchema) {
  const auto* const operations = v1::ModelConfig::descriptor()->FindOneofByName("operation");
  for (int i = 0; i < operations->field_count(); ++i) {
    v1::ModelConfig config;
    config.GetReflection()->MutableMessage(&config, operations->field(i));
    const auto made = MakeReferenceOperation(config);
    EXPECT_TRUE(made.ok()) << operations->field(i)->name() << ": " << made.status();
  }
  EXPECT_THAT(std::string(MakeReferenceOperation({}).status().message()),
              HasSubstr("names no operation that can be verified"));
}

TEST(ReferenceModelTest, GroupNormIsAffineUnlessToldOtherwise) {
  const std::map<std::string, Tensor> parameters = {{"weight", Of({2}, {1, 2})},
                                                    {"bias", Of({2}, {0, 0})}};
  const Tensor x = Of({1, 2, 1}, {1, 3});
  EXPECT_THAT(Outputs("group_norm { channels: 2 groups: 1 eps: 0 }", parameters, x),
              Pointwise(DoubleNear(1e-12), {-1.0, 2.0}));
  EXPECT_THAT(Outputs("group_norm { channels: 2 groups: 1 eps: 0 affine: false }", {}, x),
              Pointwise(DoubleNear(1e-12), {-1.0, 1.0}));
}

TEST(ReferenceModelTest, ChannelsLastPutsChannelsLast) {
  // Channel 0 is {1, 3}, channel 1 is {10, 30}.
  const auto y = Outputs("instance_norm { channels: 2 eps: 0 } layout: CHANNELS_LAST", {},
                         Of({1, 2, 2}, {1, 10, 3, 30}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {-1.0, -1.0, 1.0, 1.0}));
}

TEST(ReferenceModelTest, LayerNormHasABiasOnlyWhereTheFileHasOne) {
  const Tensor x = Of({2, 2}, {1, 3, 5, 7});
  EXPECT_THAT(
      Outputs("layer_norm { normalized_shape: 2 eps: 0 }", {{"weight", Of({2}, {1, 2})}}, x),
      Pointwise(DoubleNear(1e-12), {-1.0, 2.0, -1.0, 2.0}));
  EXPECT_THAT(Outputs("layer_norm { normalized_shape: 2 eps: 0 }",
                      {{"weight", Of({2}, {1, 2})}, {"bias", Of({2}, {1, 1})}}, x),
              Pointwise(DoubleNear(1e-12), {0.0, 3.0, 0.0, 3.0}));
}

TEST(ReferenceModelTest, RmsNormSubtractsNoMean) {
  const auto y =
      Outputs("rms_norm { normalized_shape: 2 eps: 0 affine: false }", {}, Of({1, 2}, {1, 7}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {0.2, 1.4}));
}

// The rows are {1, 2, 5, 6} and {3, 4, 7, 8}; the parameters are theirs in order.
TEST(ReferenceModelTest, AxesThatAreApartMakeARowOfEachPosition) {
  for (const std::string axes : {"[1, 3]", "[-3, -1]"}) {
    const double first = 1 / std::sqrt(16.5);
    const double second = 1 / std::sqrt(34.5);
    EXPECT_THAT(
        Outputs("rms_norm { normalized_shape: [2, 2] eps: 0 axes: " + axes + " }",
                {{"weight", Of({2, 2}, {1, 10, 100, 1000})}},
                Of({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})),
        Pointwise(DoubleNear(1e-9), {first, 20 * first, 3 * second, 40 * second, 500 * first,
                                     6000 * first, 700 * second, 8000 * second}));
  }
}

TEST(ReferenceModelTest, RmsNormWithoutEpsTakesTheMachineEpsilonOfTheInput) {
  const std::string config = "rms_norm { normalized_shape: 2 affine: false }";
  // PyTorch 2.11 gives 0.9999999998889777 for float64 and 0.94524479 for float32 and below.
  const auto doubles = Outputs(config, {}, Of({1, 2}, {1e-3, 1e-3}));
  EXPECT_NEAR(doubles[0], 0.9999999998889777, 1e-15);
  const auto model = ReferenceModel::Create(Config(config), {}).value();
  for (const norm::DType dtype :
       {norm::DType::kFloat32, norm::DType::kFloat16, norm::DType::kBFloat16}) {
    Tensor x = Tensor::Allocate(dtype, Shape::Create({1, 2}).value()).value();
    for (const int i : {0, 1}) norm::StoreElement(dtype, x.mutable_bytes().data(), i, 1e-3);
    EXPECT_NEAR(model.Compute({x.named()}).value()[0].elements[0], 0.94524479, 2e-4)
        << norm::Name(dtype);
  }
}

TEST(ReferenceModelTest, TakesThePrefixTheNamesAndEitherOfWeightAndBias) {
  const std::string config =
      "layer_norm { normalized_shape: 2 eps: 0 } parameter_prefix: \"n.\" "
      "parameter_names { key: \"bias\" value: \"shift\" }";
  EXPECT_THAT(Outputs(config, {{"n.shift", Of({2}, {1, 1})}}, Of({1, 2}, {1, 3})),
              Pointwise(DoubleNear(1e-12), {0.0, 2.0}));
}

TEST(ReferenceModelTest, BatchNormUsesRunningStatisticsAndTheActivation) {
  const auto y =
      Outputs("batch_norm { channels: 1 eps: 0 affine: false } activation: RELU",
              {{"running_mean", Of({1}, {2})}, {"running_var", Of({1}, {1})}}, Of({2, 1}, {1, 5}));
  EXPECT_THAT(y, Pointwise(DoubleNear(1e-12), {0.0, 3.0}));
}

TEST(ReferenceModelTest, EveryActivationIsItself) {
  const std::pair<const char*, double> activations[] = {
      {"NONE", -1},
      {"RELU", 0},
      {"LEAKY_RELU", -0.01},
      {"SILU", -1 / (1 + std::exp(1.0))},
      {"GELU_ERF", -0.5 * (1 + std::erf(-std::sqrt(0.5)))},
      {"GELU_TANH", -0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (-1 - 0.044715)))},
  };
  for (const auto& [name, expected] : activations) {
    const auto y = Outputs(std::string("instance_norm { channels: 1 eps: 0 } activation: ") + name,
                           {}, Of({1, 1, 2}, {1, 3}));
    EXPECT_NEAR(y[0], expected, 1e-7) << name;
  }
}

TEST(ReferenceModelTest, DefaultsEpsToThePublishedValue) {
  const auto y = Outputs("instance_norm { channels: 1 }", {}, Of({1, 1, 2}, {1, 3}));
  EXPECT_NEAR(y[1], 1 / std::sqrt(1 + 1e-5), 1e-12);
}

TEST(ReferenceModelTest, RefusesParametersThatDoNotFit) {
  const auto error = [](const std::string& config, std::map<std::string, Tensor> parameters) {
    return std::string(
        ReferenceModel::Create(Config(config), std::move(parameters)).status().message());
  };
  EXPECT_THAT(error(kInstance, {}), HasSubstr("weight: not among"));
  EXPECT_THAT(error(kInstance, {{"weight", Of({3}, {1, 1, 1})}}), HasSubstr("wanted 2 elements"));
  EXPECT_THAT(error("", {}), HasSubstr("no operation"));
  EXPECT_FALSE(error("group_norm { channels: 3 groups: 2 affine: false }", {}).empty());
  EXPECT_FALSE(error("layer_norm { normalized_shape: -2 affine: false }", {}).empty());
}

TEST(ReferenceModelTest, RefusesInputsThatDoNotFit) {
  const auto model = ReferenceModel::Create(Config("instance_norm { channels: 2 }"), {}).value();
  EXPECT_FALSE(model.Compute({Of({1, 3, 1}, {1, 2, 3}).named()}).ok());
  EXPECT_FALSE(model.Compute({Of({2}, {1, 2}).named()}).ok());
  const Tensor right = Of({1, 2, 1}, {1, 2});
  NamedTensor cut = right.named();
  cut.tensor.bytes = cut.tensor.bytes.first(8);
  EXPECT_THAT(std::string(model.Compute({cut}).status().message()), HasSubstr("wanted 16"));
  const auto layer =
      ReferenceModel::Create(Config("layer_norm { normalized_shape: 2 affine: false }"), {})
          .value();
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
  test::WriteFile(folder.File("m/config.textproto"), "instance_norm {");
  EXPECT_EQ(ReferenceModel::Load(folder.path(), "m", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd::client

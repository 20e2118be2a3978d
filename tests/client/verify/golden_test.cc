#include "client/verify/reference_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/tensor/random.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "kernels/reference.h"
#include "nlohmann/json.hpp"
#include "operations/operations.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Json = nlohmann::json;

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
  std::filesystem::create_directories(folder.File("d/config.textproto"));
  for (const char* name : {"n", "d"}) {
    EXPECT_EQ(ReferenceModel::Load(folder.path(), name, 1).status().code(),
              absl::StatusCode::kNotFound);
  }
  test::WriteFile(folder.File("m/1/params.safetensors"), "no header");
  EXPECT_THAT(std::string(ReferenceModel::Load(folder.path(), "m", 1).status().message()),
              HasSubstr("m/1/params.safetensors: "));
  test::WriteFile(folder.File("m/config.textproto"), "instance_norm {");
  EXPECT_EQ(ReferenceModel::Load(folder.path(), "m", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// What `--verify` expects, against PyTorch: golden/golden.json, which golden/make_golden.py makes.

// PyTorch rounds its sums otherwise, and the file has 11 digits.
constexpr double kTolerance = 1e-9;

struct Golden {
  v1::ModelConfig config;
  Json parameters;
  Json inputs;
  Json outputs;
};

std::vector<Golden> ReadGolden() {
  std::ifstream file(NORMD_VERIFY_GOLDEN);
  const Json golden_file = Json::parse(file);
  std::vector<Golden> cases;
  for (const Json& one : golden_file["cases"]) {
    Golden& golden =
        cases.emplace_back(Golden{{}, one["parameters"], one["inputs"], one["outputs"]});
    const auto text = one["config"].get<std::string>();
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &golden.config)) << text;
  }
  return cases;
}

Tensor TensorOf(norm::DType dtype, const Json& golden) {
  const auto dims = golden[0].get<std::vector<std::int64_t>>();
  Tensor tensor = Tensor::Allocate(dtype, Shape::Create(dims).value()).value();
  std::int64_t index = 0;
  for (const Json& value : golden[1]) {
    norm::StoreElement(dtype, tensor.mutable_bytes().data(), index++, value.get<double>());
  }
  EXPECT_EQ(index, tensor.shape().elements());
  return tensor;
}

void ExpectIs(const ReferenceOutput& output, const Json& golden) {
  const Json dims(
      std::vector<std::int64_t>(output.spec.shape.dims().begin(), output.spec.shape.dims().end()));
  EXPECT_EQ(dims, golden[0]) << output.spec.name;
  ASSERT_EQ(output.elements.size(), golden[1].size());
  for (std::size_t i = 0; i < output.elements.size(); ++i) {
    const double want = golden[1][i].get<double>();
    double got = output.elements[i];
    const bool quantized = !norm::IsNormalized(output.spec.dtype);
    if (quantized) {
      std::byte element{};
      norm::StoreElement(output.spec.dtype, &element, 0, got);
      got = norm::LoadElement(output.spec.dtype, &element, 0);
    }
    EXPECT_NEAR(got, want, quantized ? 0 : kTolerance * std::max(1.0, std::fabs(want)))
        << output.spec.name << " " << i;
  }
}

TEST(GoldenTest, AgreesWithPyTorch) {
  for (const Golden& golden : ReadGolden()) {
    SCOPED_TRACE(golden.config.ShortDebugString());
    const auto operation = MakeOperation(golden.config);
    ASSERT_TRUE(operation.ok()) << operation.status();
    const bool takes_float64 = (*operation)->TakesDType(norm::DType::kFloat64);
    const norm::DType dtype = takes_float64 ? norm::DType::kFloat64 : norm::DType::kFloat32;
    std::map<std::string, Tensor> parameters;
    for (const auto& [name, tensor] : golden.parameters.items()) {
      parameters.emplace(name, TensorOf(norm::DType::kFloat64, tensor));
    }
    std::vector<Tensor> tensors;
    std::vector<NamedTensor> inputs;
    for (const TensorSignature& input : (*operation)->signature().inputs) {
      const std::string name(input.name);
      ASSERT_TRUE(golden.inputs.contains(name)) << name;
      tensors.push_back(TensorOf(DTypeOf(input, dtype), golden.inputs[name]));
      inputs.push_back(tensors.back().named(name));
    }
    std::vector<std::string> names;
    for (const TensorSignature& output : (*operation)->signature().outputs) {
      names.emplace_back(output.name);
    }
    const auto model = ReferenceModel::Create(golden.config, test::ParametersOf(parameters));
    ASSERT_TRUE(model.ok()) << model.status();
    const auto outputs = model->Compute(inputs, names);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), golden.outputs.size());
    for (const ReferenceOutput& output : *outputs) {
      ASSERT_TRUE(golden.outputs.contains(output.spec.name)) << output.spec.name;
      ExpectIs(output, golden.outputs[output.spec.name]);
    }
  }
}

// "normd.v1.GroupNorm.eps" for a field that is set, "normd.v1.SILU" for the value of an enum.
void CollectSet(const Message& message, std::set<std::string>& names) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    names.insert(field->full_name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM && !field->is_repeated()) {
      names.insert(message.GetReflection()->GetEnum(message, field)->full_name());
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      CollectSet(message.GetReflection()->GetMessage(message, field), names);
    }
  }
}

// The same for all that a message can say.
void CollectAll(const Descriptor& message, std::set<std::string>& names) {
  for (int i = 0; i < message.field_count(); ++i) {
    names.insert(message.field(i)->full_name());
    if (const Descriptor* inner = message.field(i)->message_type()) CollectAll(*inner, names);
  }
}

TEST(GoldenTest, HasEveryFieldOfEveryOperation) {
  std::set<std::string> has;
  for (const Golden& golden : ReadGolden()) CollectSet(golden.config, has);
  std::set<std::string> all;
  const Descriptor& config = *v1::ModelConfig::descriptor();
  const auto* const operations = config.FindOneofByName("operation");
  for (int i = 0; i < operations->field_count(); ++i) {
    all.insert(operations->field(i)->full_name());
    CollectAll(*operations->field(i)->message_type(), all);
  }
  for (const char* name : {"layout", "activation", "leaky_slope", "quantization",
                           "parameter_prefix", "parameter_names"}) {
    ASSERT_NE(config.FindFieldByName(name), nullptr) << name;
    all.insert(config.FindFieldByName(name)->full_name());
  }
  CollectAll(*v1::Quantization::descriptor(), all);
  for (const EnumDescriptor* values :
       {v1::Activation_descriptor(), v1::QuantizationScales_descriptor()}) {
    for (int i = 1; i < values->value_count(); ++i) all.insert(values->value(i)->full_name());
  }
  all.insert({"normd.v1.INT8", "normd.v1.FLOAT8_E4M3"});
  for (const std::string& name : all) EXPECT_THAT(has, ::testing::Contains(name));
}

}  // namespace
}  // namespace normd::client

// What `--verify` expects, against PyTorch: golden/golden.json, which golden/make_golden.py makes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/verify/reference_model.h"
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
using Json = nlohmann::json;

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

// What every operation promises, whichever it is.

#include "operations/operation.h"
#include "operations/kernel_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "operations/operations.h"
#include "tests/server/model/operation_cases.h"

namespace normd {
namespace {

using norm::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

TEST(OperationTest, EveryOperationOfTheSchemaIsRegistered) {
  const auto* const oneof = v1::ModelConfig::descriptor()->FindOneofByName("operation");
  ASSERT_NE(oneof, nullptr);
  const std::string missing(MakeOperation(v1::ModelConfig()).status().message());
  for (int i = 0; i < oneof->field_count(); ++i) {
    const std::string& name = oneof->field(i)->name();
    EXPECT_THAT(missing, HasSubstr(name));
    const auto operation = MakeOperation(ParseConfig(name + " {}"));
    // Each needs at least its size, and says so under its own name.
    EXPECT_THAT(std::string(operation.status().message()), HasSubstr(name + "."));
    bool has_case = false;
    for (const Case& one : Cases()) has_case = has_case || one.config.rfind(name, 0) == 0;
    EXPECT_TRUE(has_case) << name << " is not among the cases of this test";
  }
}

TEST(OperationTest, GeometryAndOutputsAgree) {
  for (const Case& one : Cases()) {
    const auto operation = MakeOperation(ParseConfig(one.config));
    ASSERT_TRUE(operation.ok()) << one.config << ": " << operation.status();
    for (const DType dtype : kDTypes) {
      if (!(*operation)->TakesDType(dtype)) continue;
      for (const auto& shapes : one.requests) {
        SCOPED_TRACE(one.config);
        std::vector<TensorType> inputs;
        const Signature& signature = (*operation)->signature();
        ASSERT_EQ(shapes.size(), signature.inputs.size());
        for (const auto& dims : shapes) {
          const TensorSignature& input = signature.inputs[inputs.size()];
          inputs.push_back({DTypeOf(input, dtype), *Shape::Create(dims)});
        }
        const auto geometry = (*operation)->Check(inputs);
        ASSERT_TRUE(geometry.ok()) << geometry.status();
        const auto outputs = (*operation)->Outputs(inputs);
        ASSERT_EQ(outputs.size(), (*operation)->signature().outputs.size());
        ASSERT_EQ(geometry->inputs.size(), inputs.size());
        ASSERT_EQ(geometry->outputs.size(), outputs.size());
        const auto expect = [](const TensorSize& size, const TensorType& type) {
          const auto element = static_cast<std::int64_t>(norm::SizeOf(type.dtype));
          EXPECT_EQ(size.dtype, type.dtype);
          EXPECT_EQ(size.bytes, type.shape.elements() * element);
        };
        for (std::size_t i = 0; i < inputs.size(); ++i) expect(geometry->inputs[i], inputs[i]);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          EXPECT_EQ(outputs[i].dtype, DTypeOf(signature.outputs[i], dtype));
          if (signature.outputs[i].on_request) {
            EXPECT_EQ(geometry->outputs[i].bytes, 0);
            EXPECT_EQ(geometry->outputs[i].dtype, outputs[i].dtype);
            EXPECT_EQ(outputs[i].shape.elements(), geometry->rows);
          } else {
            expect(geometry->outputs[i], outputs[i]);
          }
        }
      }
    }
  }
}

// With parameters of one element.
KernelProgram ProgramOf(const Operation& operation) {
  alignas(8) static const std::byte element[8] = {};
  BoundParameters parameters;
  for (const ExpectedParameter& expected : operation.parameters().expected) {
    parameters[expected.name] = {element, DType::kFloat32};
  }
  return operation.MakeProgram(parameters);
}

// What the kernels say of the specs that a config leads to.
std::string KernelsRefusal(const Operation& operation) {
  const KernelProgram program = ProgramOf(operation);
  for (const DType dtype : kDTypes) {
    if (!operation.TakesDType(dtype)) continue;
    norm::Status status;
    if (const auto* const norm = std::get_if<NormProgram>(&program)) {
      status = ValidateSpec(norm->Spec(dtype), norm->params);
    } else {
      LinearNormProgram linear = std::get<LinearNormProgram>(program);
      linear.spec.dtype = dtype;
      status = ValidateLinearNorm(linear.spec, linear.params);
    }
    if (!status.ok()) return status.message();
  }
  return "";
}

// Each number of a message, and of those in it, set to each of many: visit(what) for each.
void ForNumbers(const google::protobuf::Message& unchanged, google::protobuf::Message& message,
                const std::function<void(const std::string&)>& visit) {
  using google::protobuf::FieldDescriptor;
  constexpr double kReals[] = {-1e300, -3.5e38, -1,     0,      4e-324, 1e-60, 1e-46,
                               1e-39,  0.5,     3.4e38, 3.5e38, 1e39,   1e300, HUGE_VAL};
  constexpr std::int64_t kIntegers[] = {
      INT64_MIN,       -1,        0,        1, 2, std::int64_t{1} << 20, 1LL << 31,
      (1LL << 31) + 1, 1LL << 60, INT64_MAX};
  const auto* const reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const bool repeated = field.is_repeated();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && !repeated) {
      for (const double value : kReals) {
        reflection->SetDouble(&message, &field, value);
        visit(field.full_name() + ": " + std::to_string(value));
      }
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      for (const std::int64_t value : kIntegers) {
        if (!repeated) {
          reflection->SetInt64(&message, &field, value);
        } else if (reflection->FieldSize(message, &field) > 0) {
          reflection->SetRepeatedInt64(&message, &field, 0, value);
        }
        visit(field.full_name() + ": " + std::to_string(value));
      }
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !repeated &&
               reflection->HasField(message, &field)) {
      ForNumbers(reflection->GetMessage(unchanged, &field),
                 *reflection->MutableMessage(&message, &field), visit);
    }
    message.CopyFrom(unchanged);
  }
}

TEST(OperationTest, EveryNumberThatLoadsIsOneThatTheKernelsTake) {
  int taken = 0;
  for (const Case& one : Cases()) {
    for (const std::string activation : {"", " activation: LEAKY_RELU"}) {
      const v1::ModelConfig unchanged = ParseConfig(one.config + activation);
      v1::ModelConfig config = unchanged;
      ForNumbers(unchanged, config, [&](const std::string& what) {
        if (!CheckModelConfig(config).ok()) return;
        const auto operation = MakeOperation(config);
        ASSERT_TRUE(operation.ok()) << what << ": " << operation.status();
        EXPECT_EQ(KernelsRefusal(**operation), "") << what << ", " << one.config;
        ++taken;
      });
    }
  }
  EXPECT_GT(taken, 1000);
}

TEST(OperationTest, AxesThatAreApartCutPositionsIntoRuns) {
  const auto check = [](const std::string& axes, const std::vector<std::int64_t>& dims) {
    const auto operation = MakeOperation(ParseConfig("rms_norm { " + axes + " }"));
    EXPECT_TRUE(operation.ok()) << operation.status();
    EXPECT_EQ((*operation)->cut().at, CutRule::At::kSample);
    return (*operation)->Check({{DType::kFloat32, *Shape::Create(dims)}});
  };
  const std::string axes = "normalized_shape: [2, 3] axes: [1, 3]";
  const auto geometry = check(axes, {5, 2, 4, 3, 6, 7});
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->samples, 5);
  EXPECT_EQ(geometry->spatial, 4 * 6 * 7);
  EXPECT_EQ(geometry->spatial_runs, (norm::RunSizes{4, 42, 1, 1}));
  EXPECT_EQ(geometry->workspace_bytes, 0);
  const auto from_end = check("normalized_shape: [2, 3] axes: [-4, -2]", {5, 8, 2, 4, 3, 6});
  ASSERT_TRUE(from_end.ok()) << from_end.status();
  EXPECT_EQ(from_end->samples, 40);
  EXPECT_EQ(from_end->spatial_runs, (norm::RunSizes{4, 6, 1, 1}));
  const auto pairs = check("normalized_shape: [2, 3, 4] axes: [2, 3, 6]", {5, 1, 2, 3, 7, 2, 4});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(pairs->samples, 5);
  EXPECT_EQ(pairs->spatial_runs, (norm::RunSizes{14, 1, 1, 1}));
  // A row of 1 MiB: a sample is copied whole.
  const auto large = check("normalized_shape: [4096, 64] axes: [1, 3]", {3, 4096, 2, 64});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->workspace_bytes, 2 << 20);

  EXPECT_EQ(check(axes, {5, 2, 0, 3}).status().message(),
            "shape[2]: 0 in [5, 2, 0, 3], wanted at least 1");
  EXPECT_EQ(check(axes, {5, 2, 4, 4}).status().message(),
            "shape[3]: 4 in [5, 2, 4, 4], wanted [?, 2, ?, 3, *]");
  EXPECT_EQ(check(axes, {5, 2, 4}).status().message(),
            "shape: [5, 2, 4] has 3 dimensions, wanted [?, 2, ?, 3, *]");
}

TEST(OperationTest, EveryTensorDividesIntoTheUnitsOfTheCutRule) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(ParseConfig(one.config));
    const CutRule cut = operation->cut();
    if (cut.at == CutRule::At::kRow) {
      EXPECT_EQ(operation->signature().inputs.size(), 1u);
    }
    for (const auto& shapes : one.requests) {
      std::vector<TensorType> inputs;
      for (const auto& dims : shapes) {
        const TensorSignature& input = operation->signature().inputs[inputs.size()];
        inputs.push_back({DTypeOf(input, DType::kFloat32), *Shape::Create(dims)});
      }
      const Geometry geometry = *operation->Check(inputs);
      if (geometry.samples == 0) {
        EXPECT_EQ(geometry.LargerBytes(), 0);
        continue;
      }
      const std::int64_t units = geometry.samples * cut.sample_rows;
      for (const TensorSize& tensor : geometry.inputs) EXPECT_EQ(tensor.bytes % units, 0);
      for (const TensorSize& tensor : geometry.outputs) EXPECT_EQ(tensor.bytes % units, 0);
      if (cut.at == CutRule::At::kRow) {
        EXPECT_EQ(geometry.rows, units);
        const auto spatial_bytes = static_cast<std::int64_t>(sizeof(float)) * geometry.spatial;
        EXPECT_EQ(geometry.inputs[0].bytes / units, cut.row_channels * spatial_bytes);
      }
    }
  }
}

TEST(OperationTest, AsksForNoStatisticsThatItDoesNotHave) {
  const auto names = [](const std::string& config) {
    std::vector<std::string> found;
    const auto operation = *MakeOperation(ParseConfig(config));
    for (const TensorSignature& output : operation->signature().outputs) {
      found.push_back(std::string(output.name) + (output.on_request ? "?" : ""));
    }
    return found;
  };
  EXPECT_THAT(names("layer_norm { normalized_shape: 6 }"), ElementsAre("y", "mean?", "rstd?"));
  EXPECT_THAT(names("rms_norm { normalized_shape: 6 }"), ElementsAre("y", "rstd?"));
  EXPECT_THAT(names("lp_normalize { normalized_shape: 6 }"), ElementsAre("y", "rstd?"));
  EXPECT_THAT(names("batch_norm { channels: 6 }"), ElementsAre("y"));
  EXPECT_THAT(names("instance_norm { channels: 6 use_running_stats: true }"), ElementsAre("y"));
  EXPECT_THAT(names("add_layer_norm { normalized_shape: 6 } "
                    "quantization { dtype: FLOAT8_E4M3 scales: PER_ROW }"),
              ElementsAre("y", "residual_out", "y_scale", "mean?", "rstd?"));
}

TEST(OperationTest, AnOutputReplacesOnlyAnInputOfItsOwnTypeAndShape) {
  const auto replaced = [](const std::string& config) {
    const auto operation = *MakeOperation(ParseConfig(config));
    const KernelProgram program = ProgramOf(*operation);
    std::vector<int> inputs;
    for (std::size_t o = 0; o < operation->signature().outputs.size(); ++o) {
      const std::optional<std::size_t> input = OverwritableInput(program, o);
      inputs.push_back(input ? static_cast<int>(*input) : -1);
    }
    return inputs;
  };
  EXPECT_THAT(replaced("add_layer_norm { normalized_shape: 6 }"), ElementsAre(0, 1, -1, -1));
  EXPECT_THAT(replaced("add_layer_norm { normalized_shape: 6 } "
                       "quantization { dtype: FLOAT8_E4M3 scales: PER_ROW }"),
              ElementsAre(-1, 1, -1, -1, -1));
  EXPECT_THAT(replaced("linear_norm { in_features: 4 out_features: 6 epilogue { add: true } }"),
              ElementsAre(1));
}

// What costs more than its bytes tell does not hold up the thread that received it.
TEST(OperationTest, OnlyWhatCostsInProportionToItsBytesRunsInline) {
  for (const Case& one : Cases()) {
    const auto operation = *MakeOperation(ParseConfig(one.config));
    const bool costly = one.config.rfind("linear_norm", 0) == 0 ||
                        one.config == "conditional_instance_norm { channels: 4 styles: 3 }";
    EXPECT_EQ(operation->runs_inline(), !costly) << one.config;
  }
}

// "precision" is the only option so far.
TEST(OperationTest, AnOptionIsTakenOrRefusedByName) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(ParseConfig(one.config));
    EXPECT_TRUE(operation->CheckOptions({}, "m").ok());
    const auto tf32 = operation->CheckOptions({v1::PRECISION_TF32}, "m");
    const bool takes = one.config.rfind("linear_norm", 0) == 0;
    if (takes) {
      ASSERT_TRUE(tf32.ok()) << tf32.status();
      EXPECT_EQ(tf32->precision, norm::Precision::kTf32);
    } else {
      EXPECT_EQ(tf32.status(), absl::InvalidArgumentError(
                                   "precision: PRECISION_TF32, wanted none: model \"m\" has no "
                                   "matrix product"));
    }
    EXPECT_THAT(
        std::string(
            operation->CheckOptions({static_cast<v1::Precision>(9)}, "m").status().message()),
        HasSubstr("precision: 9, wanted PRECISION_FLOAT32"));
  }
}

}  // namespace
}  // namespace normd

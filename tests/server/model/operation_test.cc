// What every operation promises, whichever it is.

#include "server/model/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/model/config.h"
#include "server/model/operations/operations.h"

namespace normd {
namespace {

using norm::DType;
using ::testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

v1::ModelConfig Parse(const std::string& text) {
  const auto config = ParseModelConfig(text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(v1::ModelConfig());
}

struct Case {
  std::string config;
  // Shapes of requests that it accepts, one for each input.
  std::vector<std::vector<std::vector<std::int64_t>>> requests;
};

std::vector<Case> Cases() {
  const std::string linear = "linear_norm { in_features: 4 out_features: 6 ";
  std::vector<Case> cases;
  for (const std::string layout : {"", " layout: CHANNELS_LAST"}) {
    const bool last = !layout.empty();
    const auto x = [last](std::int64_t n, std::int64_t s) {
      return last ? std::vector<std::int64_t>{n, s, 12} : std::vector<std::int64_t>{n, 12, s};
    };
    for (const std::string norm :
         {"instance_norm { channels: 12 }", "group_norm { channels: 12 groups: 4 affine: false }",
          "batch_norm { channels: 12 affine: false }"}) {
      cases.push_back({norm + layout, {{x(0, 5)}, {x(1, 1)}, {x(3, 7)}}});
    }
  }
  for (const std::string norm : {"layer_norm", "rms_norm"}) {
    cases.push_back({norm + " { normalized_shape: [2, 3] affine: false }",
                     {{{2, 3}}, {{0, 2, 3}}, {{5, 2, 2, 3}}}});
  }
  cases.push_back({linear + "}", {{{4}}, {{0, 4}}, {{2, 3, 4}}}});
  cases.push_back({linear + "epilogue { add: true } }",
                   {{{4}, {6}}, {{0, 4}, {0, 6}}, {{2, 3, 4}, {2, 3, 6}}}});
  return cases;
}

TEST(OperationTest, EveryOperationOfTheSchemaIsRegistered) {
  const auto* const oneof = v1::ModelConfig::descriptor()->FindOneofByName("operation");
  ASSERT_NE(oneof, nullptr);
  const std::string missing(MakeOperation(v1::ModelConfig()).status().message());
  for (int i = 0; i < oneof->field_count(); ++i) {
    const std::string& name = oneof->field(i)->name();
    EXPECT_THAT(missing, HasSubstr(name));
    const auto operation = MakeOperation(Parse(name + " {}"));
    // Each needs at least its size, and says so under its own name.
    EXPECT_THAT(std::string(operation.status().message()), HasSubstr(name + "."));
    bool has_case = false;
    for (const Case& one : Cases()) has_case = has_case || one.config.rfind(name, 0) == 0;
    EXPECT_TRUE(has_case) << name << " is not among the cases of this test";
  }
}

TEST(OperationTest, GeometryAndOutputsAgree) {
  for (const Case& one : Cases()) {
    const auto operation = MakeOperation(Parse(one.config));
    ASSERT_TRUE(operation.ok()) << one.config << ": " << operation.status();
    for (const DType dtype : kDTypes) {
      if (!(*operation)->TakesDType(dtype)) continue;
      for (const auto& shapes : one.requests) {
        SCOPED_TRACE(one.config);
        std::vector<TensorType> inputs;
        for (const auto& dims : shapes) inputs.push_back({dtype, *Shape::Create(dims)});
        ASSERT_EQ(inputs.size(), (*operation)->input_names().size());
        const auto geometry = (*operation)->Check(inputs);
        ASSERT_TRUE(geometry.ok()) << geometry.status();
        const auto outputs = (*operation)->Outputs(inputs);
        ASSERT_EQ(outputs.size(), (*operation)->output_names().size());
        ASSERT_EQ(geometry->inputs.size(), inputs.size());
        ASSERT_EQ(geometry->outputs.size(), outputs.size());
        const auto expect = [](const TensorSize& size, const TensorType& type) {
          const auto element = static_cast<std::int64_t>(norm::SizeOf(type.dtype));
          EXPECT_EQ(size.dtype, type.dtype);
          EXPECT_EQ(size.bytes, type.shape.elements() * element);
        };
        for (std::size_t i = 0; i < inputs.size(); ++i) expect(geometry->inputs[i], inputs[i]);
        for (std::size_t i = 0; i < outputs.size(); ++i) expect(geometry->outputs[i], outputs[i]);
      }
    }
  }
}

TEST(OperationTest, EveryTensorDividesIntoTheUnitsOfTheCutRule) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(Parse(one.config));
    const CutRule cut = operation->cut();
    if (cut.at == CutRule::At::kRow) {
      EXPECT_EQ(operation->input_names().size(), 1u);
      EXPECT_EQ(operation->output_names().size(), 1u);
    }
    for (const auto& shapes : one.requests) {
      std::vector<TensorType> inputs;
      for (const auto& dims : shapes) inputs.push_back({DType::kFloat32, *Shape::Create(dims)});
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

// "precision" is the only option so far.
TEST(OperationTest, AnOptionIsTakenOrRefusedByName) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(Parse(one.config));
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

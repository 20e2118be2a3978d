#include "client/verify/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "client/verify/default_inputs.h"
#include "kernels/reference.h"

namespace normd::client {
namespace {

using norm::DType;
using ::testing::HasSubstr;
using Pieces = std::vector<absl::Span<const std::byte>>;

const double kNan = std::nan("");
const double kInf = std::numeric_limits<double>::infinity();

std::vector<std::byte> Elements(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * norm::SizeOf(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    norm::StoreElement(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

Comparison CompareOne(DType dtype, double got, double expected) {
  const std::vector<std::byte> bytes = Elements(dtype, {got});
  return Compare(dtype, Pieces{bytes}, {expected});
}

TEST(CompareTest, Float32IsHeldToOnePartInTenThousand) {
  EXPECT_TRUE(CompareOne(DType::kFloat32, 0.00009, 0).ok());
  EXPECT_FALSE(CompareOne(DType::kFloat32, 0.00012, 0).ok());
  EXPECT_TRUE(CompareOne(DType::kFloat32, 1000.09, 1000).ok());
  EXPECT_FALSE(CompareOne(DType::kFloat32, 1000.12, 1000).ok());
}

TEST(CompareTest, Float64IsHeldToOnePartInABillion) {
  EXPECT_TRUE(CompareOne(DType::kFloat64, 1 + 5e-10, 1).ok());
  EXPECT_FALSE(CompareOne(DType::kFloat64, 1 + 5e-9, 1).ok());
}

TEST(CompareTest, HalvesAreHeldToOneUnitInTheLastPlace) {
  // The next float16 above 1 is 1 + 2^-10, the next bfloat16 1 + 2^-7.
  EXPECT_TRUE(CompareOne(DType::kFloat16, 1 + 0x1p-10, 1).ok());
  EXPECT_FALSE(CompareOne(DType::kFloat16, 1 + 0x1p-9, 1).ok());
  EXPECT_TRUE(CompareOne(DType::kBFloat16, 1 + 0x1p-7, 1).ok());
  EXPECT_FALSE(CompareOne(DType::kBFloat16, 1 + 0x1p-6, 1).ok());
  // Across zero and into infinity.
  EXPECT_TRUE(CompareOne(DType::kFloat16, -0x1p-24, 0x1p-24).ok());
  EXPECT_TRUE(CompareOne(DType::kFloat16, 65504, 65530).ok());
  EXPECT_FALSE(CompareOne(DType::kFloat16, 60000, 65530).ok());
}

TEST(CompareTest, NansAndInfinitiesMustMatch) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_TRUE(CompareOne(dtype, kNan, kNan).ok());
    EXPECT_TRUE(CompareOne(dtype, kInf, kInf).ok());
    EXPECT_FALSE(CompareOne(dtype, -kInf, kInf).ok());
    EXPECT_FALSE(CompareOne(dtype, kNan, 1).ok());
    EXPECT_FALSE(CompareOne(dtype, 1, kNan).ok());
    EXPECT_FALSE(CompareOne(dtype, 1, kInf).ok());
    EXPECT_EQ(CompareOne(dtype, 1, kNan).max_error, kInf);
  }
}

TEST(CompareTest, PiecesMaySplitElementsAnywhere) {
  const std::vector<double> values = {1, -2, 3, -4, 5};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
    const std::vector<std::byte> bytes = Elements(dtype, values);
    const absl::Span<const std::byte> all(bytes);
    for (std::size_t cut = 0; cut <= all.size(); ++cut) {
      for (std::size_t next = cut; next <= all.size(); ++next) {
        const Comparison comparison = Compare(
            dtype, Pieces{all.first(cut), all.subspan(cut, next - cut), all.subspan(next)}, values);
        ASSERT_TRUE(comparison.ok()) << cut << " " << next;
        ASSERT_EQ(comparison.elements, 5);
        ASSERT_EQ(comparison.max_error, 0);
      }
    }
  }
}

TEST(CompareTest, TellsTheWorstElement) {
  const std::vector<std::byte> bytes = Elements(DType::kFloat32, {1, 2.5, 3.25});
  const Comparison comparison = Compare(DType::kFloat32, Pieces{bytes}, {1, 2, 3});
  EXPECT_EQ(comparison.wrong, 2);
  EXPECT_EQ(comparison.worst_index, 1);
  EXPECT_EQ(comparison.max_error, 0.25);
  EXPECT_EQ(Describe(comparison),
            "max error 0.25 over 3 elements, 2 wrong; element 1: got 2.5, expected 2");
}

TEST(CompareTest, MissingElementsAreWrong) {
  const std::vector<std::byte> bytes = Elements(DType::kFloat32, {1});
  EXPECT_EQ(Compare(DType::kFloat32, Pieces{bytes}, {1, 2, 3}).wrong, 2);
  EXPECT_TRUE(Compare(DType::kFloat32, Pieces{}, {}).ok());
}

v1::ModelInfo Model(const std::vector<std::vector<std::int64_t>>& inputs) {
  const std::string names[] = {"x", "y", "z"};
  v1::ModelInfo model;
  for (const auto& shape : inputs) {
    v1::TensorInfo& input = *model.add_inputs();
    input.set_name(names[model.inputs_size() - 1]);
    input.mutable_shape()->Assign(shape.begin(), shape.end());
  }
  return model;
}

std::string ShapeOf(const v1::ModelInfo& model, std::size_t input) {
  return DefaultInputs(model)->at(input).shape.ToString();
}

TEST(DefaultInputsTest, IsAnImageWhereTheModelHasChannels) {
  EXPECT_EQ(ShapeOf(Model({{-1, 64, -2}}), 0), "[1, 64, 56, 56]");
  EXPECT_EQ(ShapeOf(Model({{-1, -2, 320}}), 0), "[1, 56, 56, 320]");
  EXPECT_EQ(ShapeOf(Model({{-1, -2, 3}}), 0), "[1, 56, 56, 3]");
  EXPECT_EQ(DefaultInputs(Model({{-1, -2, 3}}))->size(), 1U);
}

TEST(DefaultInputsTest, IsRowsWhereTheModelHasANormalizedShape) {
  EXPECT_EQ(ShapeOf(Model({{-2, 4, 1024}}), 0), "[8, 4, 1024]");
  EXPECT_EQ(ShapeOf(Model({{-2, 4096}}), 0), "[8, 4096]");
  EXPECT_EQ(ShapeOf(Model({{-1, 4096}}), 0), "[8, 4096]");
}

TEST(DefaultInputsTest, HasEveryInputWithAsManySamples) {
  const v1::ModelInfo rows = Model({{-2, 512}, {-2, 256}});
  EXPECT_EQ(DefaultInputs(rows)->size(), 2U);
  EXPECT_EQ(ShapeOf(rows, 0), "[8, 512]");
  EXPECT_EQ(ShapeOf(rows, 1), "[8, 256]");
  EXPECT_EQ(DefaultInputs(rows)->at(0).name, "x");
  EXPECT_EQ(DefaultInputs(rows)->at(1).name, "y");
  const v1::ModelInfo image = Model({{-1, 64, -2}, {-1, 64, -2}, {-1}});
  EXPECT_EQ(ShapeOf(image, 1), "[1, 64, 56, 56]");
  EXPECT_EQ(ShapeOf(image, 2), "[1]");
}

TEST(DefaultInputsTest, AServerThatIsOlderOrNewerAsksForAShape) {
  const absl::Status older = DefaultInputs({}).status();
  EXPECT_EQ(older.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(older.message()), HasSubstr("older than this program: wanted a shape"));
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-1, -4}, {-2, 4, -2}, {-3, -2}, {INT64_MIN}}) {
    const absl::Status newer = DefaultInputs(Model({{-1, 4}, shape})).status();
    EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(newer.message()), HasSubstr("input \"y\": shape ["));
  }
  EXPECT_EQ(DefaultInputs(Model({{INT64_MAX, -2, INT64_MAX}})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd::client

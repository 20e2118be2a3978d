#include "client/verify/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference.h"

namespace normd::client {
namespace {

using norm::DType;
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

}  // namespace
}  // namespace normd::client

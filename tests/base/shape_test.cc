#include "base/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace normd {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(CheckedMultiplyTest, ReturnsProductsUpTo63Bits) {
  EXPECT_EQ(CheckedMultiply(0, kMax), 0);
  EXPECT_EQ(CheckedMultiply(kMax, 1), kMax);
  EXPECT_EQ(CheckedMultiply(std::int64_t{1} << 31, (std::int64_t{1} << 31) - 1),
            (std::int64_t{1} << 62) - (std::int64_t{1} << 31));
}

TEST(CheckedMultiplyTest, RefusesProductsBeyond63Bits) {
  EXPECT_EQ(CheckedMultiply(kMax, 2), std::nullopt);
  EXPECT_EQ(CheckedMultiply(std::int64_t{1} << 32, std::int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(CheckedMultiply(kMax, kMax), std::nullopt);
}

TEST(ShapeTest, KeepsItsDimensions) {
  const absl::StatusOr<Shape> shape = Shape::Create({2, 64, 512, 512});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->rank(), 4);
  EXPECT_EQ(shape->dim(1), 64);
  EXPECT_EQ(shape->elements(), 2 * 64 * 512 * 512);
  EXPECT_EQ(shape->Product(2, 4), 512 * 512);
  EXPECT_EQ(shape->Product(2, 2), 1);
  EXPECT_EQ(shape->ToString(), "[2, 64, 512, 512]");
}

TEST(ShapeTest, OfRankZeroHasOneElement) {
  const absl::StatusOr<Shape> shape = Shape::Create({});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->elements(), 1);
  EXPECT_EQ(shape->ToString(), "[]");
}

TEST(ShapeTest, EqualsByDimensions) {
  EXPECT_EQ(*Shape::Create({2, 3}), *Shape::Create({2, 3}));
  EXPECT_FALSE(*Shape::Create({2, 3}) == *Shape::Create({3, 2}));
  EXPECT_FALSE(*Shape::Create({2}) == *Shape::Create({2, 1}));
}

TEST(ShapeTest, TakesTheLargestRankAndNoMore) {
  EXPECT_TRUE(Shape::Create(std::vector<std::int64_t>(kMaxRank, 1)).ok());
  const absl::Status status = Shape::Create(std::vector<std::int64_t>(kMaxRank + 1, 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("17 dimensions, wanted at most 16"));
}

TEST(ShapeTest, NamesTheDimensionThatIsNegative) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const absl::Status status = Shape::Create({2, bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("shape[1]: " + std::to_string(bad) + ", wanted 0 or more"));
  }
}

TEST(ShapeTest, TakesProductsUpTo63BitsAndNoMore) {
  EXPECT_TRUE(Shape::Create({kMax}).ok());
  EXPECT_TRUE(Shape::Create({kMax, 1}).ok());
  EXPECT_THAT(std::string(Shape::Create({kMax, 2}).status().message()),
              HasSubstr("has more than 2^63 elements, wanted at most 9223372036854775807"));
  EXPECT_FALSE(Shape::Create({std::int64_t{1} << 32, std::int64_t{1} << 32}).ok());
}

TEST(ShapeTest, AZeroHidesNoOverflowBesideIt) {
  EXPECT_TRUE(Shape::Create({0, kMax}).ok());
  EXPECT_EQ(Shape::Create({0, kMax})->elements(), 0);
  EXPECT_FALSE(Shape::Create({kMax, 0, 2}).ok());
  EXPECT_FALSE(Shape::Create({0, kMax, kMax}).ok());
}

TEST(ShapePatternTest, IsWrittenWithAMarkForOneDimensionAndAStarForMany) {
  EXPECT_EQ(PatternText({kAnySize, 64, kAnyDimensions}), "[?, 64, *]");
  EXPECT_EQ(PatternText({kAnyDimensions, 2, 3}), "[*, 2, 3]");
  EXPECT_EQ(PatternText({kAnySize, 64, kOwnDimensions}), "[?, 64, *']");
  EXPECT_EQ(PatternText({}), "[]");
  EXPECT_EQ(PatternText({0, -4}), "[0, -4]");  // Not ours to judge.
}

}  // namespace
}  // namespace normd

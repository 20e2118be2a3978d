#include "base/shape.h"

#include <gtest/gtest.h>

namespace normd {
namespace {

TEST(ShapePatternTest, IsWrittenWithAMarkForOneDimensionAndAStarForMany) {
  EXPECT_EQ(PatternText({kAnySize, 64, kAnyDimensions}), "[?, 64, *]");
  EXPECT_EQ(PatternText({kAnyDimensions, 2, 3}), "[*, 2, 3]");
  EXPECT_EQ(PatternText({kAnySize, 64, kOwnDimensions}), "[?, 64, *']");
  EXPECT_EQ(PatternText({}), "[]");
  EXPECT_EQ(PatternText({0, -4}), "[0, -4]");  // Not ours to judge.
}

}  // namespace
}  // namespace normd

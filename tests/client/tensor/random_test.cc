#include "client/tensor/random.h"

#include <gtest/gtest.h>

#include "kernels/reference.h"

namespace normd::client {
namespace {

// The first outputs for the seed 1234567, from the authors' reference implementation.
TEST(SplitMix64Test, GivesThePublishedSequence) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(RandomTensorTest, IsWithinItsRangeAndFillsIt) {
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    const Tensor tensor = RandomTensor(dtype, Shape::Create({10, 100}).value(), -2, 6, 3).value();
    double sum = 0;
    for (std::int64_t i = 0; i < 1000; ++i) {
      const double value = norm::LoadElement(dtype, tensor.bytes().data(), i);
      EXPECT_GE(value, -2);
      EXPECT_LE(value, 6);
      sum += value;
    }
    EXPECT_NEAR(sum / 1000, 2, 0.3);
  }
}

TEST(RandomTensorTest, DependsOnTheSeedAlone) {
  const Shape shape = Shape::Create({64}).value();
  const auto make = [&](std::uint64_t seed) {
    return RandomTensor(norm::DType::kFloat32, shape, 0, 1, seed).value();
  };
  EXPECT_EQ(make(1).bytes(), make(1).bytes());
  EXPECT_NE(make(1).bytes(), make(2).bytes());
}

}  // namespace
}  // namespace normd::client

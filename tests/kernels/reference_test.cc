#include "kernels/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace normd::norm {
namespace {

double Decode(DType dtype, std::uint16_t bits) { return LoadElement(dtype, &bits, 0); }

std::uint16_t Encode(DType dtype, double value) {
  std::uint16_t bits = 0;
  StoreElement(dtype, &bits, 0, value);
  return bits;
}

TEST(ReferenceTest, DecodesKnown16BitValues) {
  EXPECT_EQ(Decode(DType::kFloat16, 0x3C00), 1);
  EXPECT_EQ(Decode(DType::kFloat16, 0xC000), -2);
  EXPECT_EQ(Decode(DType::kFloat16, 0x7BFF), 65504);
  EXPECT_EQ(Decode(DType::kFloat16, 0x0001), std::ldexp(1, -24));
  EXPECT_EQ(Decode(DType::kFloat16, 0x0400), std::ldexp(1, -14));
  EXPECT_TRUE(std::isinf(Decode(DType::kFloat16, 0xFC00)));
  EXPECT_TRUE(std::isnan(Decode(DType::kFloat16, 0x7C01)));
  EXPECT_EQ(Decode(DType::kBFloat16, 0x3F80), 1);
  EXPECT_EQ(Decode(DType::kBFloat16, 0x0001), std::ldexp(1, -133));
  EXPECT_TRUE(std::isnan(Decode(DType::kBFloat16, 0xFFC0)));
}

TEST(ReferenceTest, RoundsTiesTo16BitsToEvenAndOverflowsToInfinity) {
  EXPECT_EQ(Encode(DType::kFloat16, 1 + std::ldexp(1, -11)), 0x3C00);
  EXPECT_EQ(Encode(DType::kFloat16, 1 + 3 * std::ldexp(1, -11)), 0x3C02);
  EXPECT_EQ(Encode(DType::kFloat16, 1 + std::ldexp(1, -11) + 1e-9), 0x3C01);
  EXPECT_EQ(Encode(DType::kFloat16, std::ldexp(1, -25)), 0x0000);
  EXPECT_EQ(Encode(DType::kFloat16, 3 * std::ldexp(1, -25)), 0x0002);
  EXPECT_EQ(Encode(DType::kFloat16, 65519.99), 0x7BFF);
  EXPECT_EQ(Encode(DType::kFloat16, 65520), 0x7C00);
  EXPECT_EQ(Encode(DType::kBFloat16, 1 + std::ldexp(1, -8)), 0x3F80);
  EXPECT_EQ(Encode(DType::kBFloat16, 1 + 3 * std::ldexp(1, -8)), 0x3F82);
  EXPECT_EQ(Encode(DType::kBFloat16, -1e39), 0xFF80);
  EXPECT_TRUE(std::isnan(Decode(DType::kBFloat16, Encode(DType::kBFloat16, std::nan("")))));
}

TEST(ReferenceTest, Every16BitValueSurvivesARoundTrip) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const double value = Decode(dtype, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) continue;
      ASSERT_EQ(Encode(dtype, value), bits) << Name(dtype);
    }
  }
}

TEST(ReferenceTest, NormalizesEachRowByHand) {
  // Two channels of two elements: means 2 and 10, variances 1 and 4.
  const float x[] = {1, 3, 8, 12};
  const float gamma[] = {1, 3};
  const float beta[] = {0, 0.5};
  NormSpec spec = InstanceNormSpec(2, DType::kFloat32);
  spec.eps = 0;
  NormParams params;
  params.gamma.data = gamma;
  params.beta.data = beta;
  std::vector<double> y(4);
  const Segment segment{x, nullptr, 1, 2};
  ASSERT_TRUE(NormalizeReference(spec, params, segment, y.data()).ok());
  EXPECT_EQ(y, (std::vector<double>{-1, 1, -2.5, 3.5}));

  // The same numbers with channels last: rows {1, 8} and {3, 12}.
  spec.layout = Layout::kChannelsLast;
  ASSERT_TRUE(NormalizeReference(spec, params, segment, y.data()).ok());
  EXPECT_EQ(y, (std::vector<double>{-1, -2.5, 1, 3.5}));

  // The mean of squares of all four: 218 / 4.
  spec = RmsNormSpec(4, DType::kFloat32);
  spec.eps = 0;
  const Segment row{x, nullptr, 1, 1};
  ASSERT_TRUE(NormalizeReference(spec, {}, row, y.data()).ok());
  EXPECT_DOUBLE_EQ(y[3], 12 / std::sqrt(54.5));
}

TEST(ReferenceTest, LeavesGapsBetweenSamplesOut) {
  const float x[] = {3, 4, NAN, NAN, NAN, 6, 8};
  const float residual[] = {0, 0, 6, 8};
  NormSpec spec = RmsNormSpec(2, DType::kFloat32);
  spec.eps = 0;
  Segment segment{x, nullptr, 2, 1};
  segment.x_pitch = 5;
  double y[4] = {};
  ASSERT_TRUE(NormalizeReference(spec, {}, segment, y).ok());
  EXPECT_DOUBLE_EQ(y[3], 8 / std::sqrt(50));
  spec.residual = true;
  segment.residual = residual;
  ASSERT_TRUE(NormalizeReference(spec, {}, segment, y).ok());
  EXPECT_DOUBLE_EQ(y[2], 12 / std::sqrt(200));
  EXPECT_EQ(NormalizedElement(spec, {}, segment, 3), 16);
}

TEST(ReferenceTest, RefusesWhatTheContractRefuses) {
  NormSpec spec = InstanceNormSpec(2, DType::kFloat32);
  double y[1];
  const Segment negative{nullptr, nullptr, -1, 1};
  EXPECT_FALSE(NormalizeReference(spec, {}, negative, y).ok());
  spec.channels = 0;
  EXPECT_FALSE(NormalizeReference(spec, {}, {nullptr, nullptr, 0, 1}, y).ok());
}

}  // namespace
}  // namespace normd::norm

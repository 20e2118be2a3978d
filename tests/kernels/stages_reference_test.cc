// The float64 reference against values computed by hand, stage by stage, and the 8-bit formats.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference.h"

namespace normd::norm {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::uint8_t EncodeE4M3(double value) {
  std::uint8_t code = 0;
  StoreQuantized(Quantization::kFloat8E4M3, &code, 0, value);
  return code;
}

int EncodeInt8(double value) {
  std::int8_t code = 0;
  StoreQuantized(Quantization::kInt8, &code, 0, value);
  return code;
}

TEST(QuantizedFormatTest, EveryE4M3CodeSurvivesARoundTrip) {
  double before = -1;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const double value = LoadQuantized(Quantization::kFloat8E4M3, &byte, 0);
    EXPECT_EQ(std::isnan(value), (code & 0x7f) == 0x7f) << code;
    if (std::isnan(value)) continue;
    EXPECT_EQ(EncodeE4M3(value), code);
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    if (code < 128) {
      EXPECT_GT(value, before) << code;
      before = value;
    }
  }
  EXPECT_EQ(before, 448);
}

TEST(QuantizedFormatTest, E4M3HasTheValuesOfItsDefinition) {
  const auto decode = [](std::uint8_t code) {
    return LoadQuantized(Quantization::kFloat8E4M3, &code, 0);
  };
  EXPECT_EQ(decode(0x01), 0x1p-9);
  EXPECT_EQ(decode(0x07), 7 * 0x1p-9);
  EXPECT_EQ(decode(0x08), 0x1p-6);
  EXPECT_EQ(decode(0x38), 1);
  EXPECT_EQ(decode(0x39), 1.125);
  EXPECT_EQ(decode(0xc0), -2);
  EXPECT_EQ(decode(0x7e), 448);
}

TEST(QuantizedFormatTest, E4M3RoundsTiesToEvenAndSaturates) {
  EXPECT_EQ(EncodeE4M3(1.0625), 0x38);
  EXPECT_EQ(EncodeE4M3(1.0625 + 1e-9), 0x39);
  EXPECT_EQ(EncodeE4M3(1.1875), 0x3a);
  EXPECT_EQ(EncodeE4M3(1.9375), 0x40);  // Half a step below 2, whose mantissa is even.
  EXPECT_EQ(EncodeE4M3(0x1p-10), 0x00);
  EXPECT_EQ(EncodeE4M3(0x1.8p-9), 0x02);
  EXPECT_EQ(EncodeE4M3(7.5 * 0x1p-9), 0x08);
  EXPECT_EQ(EncodeE4M3(432), 0x7e);  // Half a step below 448: an even mantissa again.
  EXPECT_EQ(EncodeE4M3(431.9), 0x7d);
  for (const double large : {449.0, 464.0, 480.0, 1e30, kInf}) {
    EXPECT_EQ(EncodeE4M3(large), 0x7e) << large;
    EXPECT_EQ(EncodeE4M3(-large), 0xfe) << large;
  }
  EXPECT_EQ(EncodeE4M3(-0.0), 0x80);
  EXPECT_EQ(EncodeE4M3(-1e-300), 0x80);
  EXPECT_EQ(EncodeE4M3(std::nan("")) & 0x7f, 0x7f);
}

TEST(QuantizedFormatTest, Int8RoundsTiesToEvenAndSaturates) {
  for (int value = -128; value < 128; ++value) EXPECT_EQ(EncodeInt8(value), value);
  EXPECT_EQ(EncodeInt8(0.5), 0);
  EXPECT_EQ(EncodeInt8(1.5), 2);
  EXPECT_EQ(EncodeInt8(-2.5), -2);
  EXPECT_EQ(EncodeInt8(126.5), 126);
  EXPECT_EQ(EncodeInt8(127.5), 127);
  EXPECT_EQ(EncodeInt8(-128.5), -128);
  EXPECT_EQ(EncodeInt8(-129), -128);
  EXPECT_EQ(EncodeInt8(kInf), 127);
  EXPECT_EQ(EncodeInt8(-kInf), -128);
  EXPECT_EQ(EncodeInt8(std::nan("")), 0);
}

// Two samples of a row {1, 7}, whose mean square is 25, and {-3, 1}, whose mean square is 5.
class ReferenceStagesTest : public ::testing::Test {
 protected:
  ReferenceStagesTest() {
    spec_.eps = 0;
    segment_.x = x_;
    segment_.samples = 2;
  }
  std::vector<double> Compute() {
    std::vector<double> y(4, std::nan(""));
    const ReferenceOutputs out{y.data(), mean_, rstd_};
    const Status status = NormalizeReference(spec_, params_, segment_, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }
  void UseMeanVariance() { spec_.statistics = Statistics::kMeanVariance; }

  NormSpec spec_ = RmsNormSpec(2, DType::kFloat32);
  NormParams params_;
  Segment segment_;
  const float x_[4] = {1, 7, -3, 1};
  double mean_[4] = {};
  double rstd_[4] = {};
};

MATCHER_P(AreNear, wanted, "") {
  return ::testing::ExplainMatchResult(Pointwise(::testing::DoubleNear(1e-12), wanted), arg,
                                       result_listener);
}
std::vector<double> Values(std::vector<double> values) { return values; }

TEST_F(ReferenceStagesTest, AddsResidualAndBiasAndGatesX) {
  const float residual[] = {4, 0, 1, 2}, gate[] = {1, 2, -1, 3}, bias[] = {1, -4};
  spec_.residual = true;
  segment_.residual = residual;
  // {5, 7} and {-2, 3}
  EXPECT_THAT(Compute(), AreNear(Values({5 / std::sqrt(37), 7 / std::sqrt(37), -2 / std::sqrt(6.5),
                                         3 / std::sqrt(6.5)})));
  // {2, 3} and {-2, -3} are gated.
  spec_.gate = true;
  segment_.gate = gate;
  params_.input_bias.data = bias;
  EXPECT_THAT(Compute(), AreNear(Values({6 / std::sqrt(36), 6 / std::sqrt(36), 3 / std::sqrt(29),
                                         -7 / std::sqrt(29)})));
  EXPECT_EQ(NormalizedElement(spec_, params_, segment_, 3), -7);
}

TEST_F(ReferenceStagesTest, RoundsTheSumToTheTypeBeforeTheStatistics) {
  // Around 256 bfloat16 has steps of 2: the ties 257 and 259 go to 256 and 260.
  Segment segment;
  std::uint16_t x[2], residual[2];
  StoreElement(DType::kBFloat16, x, 0, 256);
  StoreElement(DType::kBFloat16, x, 1, 256);
  StoreElement(DType::kBFloat16, residual, 0, 1);
  StoreElement(DType::kBFloat16, residual, 1, 3);
  segment.x = x;
  segment.residual = residual;
  segment.samples = 1;
  spec_.dtype = DType::kBFloat16;
  spec_.residual = true;
  EXPECT_EQ(NormalizedElement(spec_, params_, segment, 0), 256);
  EXPECT_EQ(NormalizedElement(spec_, params_, segment, 1), 260);
  std::vector<double> y(2);
  ASSERT_TRUE(NormalizeReference(spec_, params_, segment, y.data()).ok());
  EXPECT_DOUBLE_EQ(y[0], 256 / std::sqrt((256.0 * 256 + 260 * 260) / 2));
}

TEST_F(ReferenceStagesTest, CombinesWithASecondTensor) {
  const float other[] = {2, 0, -1, 3};
  segment_.other = other;
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  const double first = 1 / 5.0, second = 7 / 5.0;
  const double third = -3 / std::sqrt(5), fourth = 1 / std::sqrt(5);
  spec_.combine_output = Combine::kAdd;
  EXPECT_THAT(Compute(), AreNear(Values({first + 2, second, third - 1, fourth + 3})));
  spec_.combine_output = Combine::kMultiply;
  EXPECT_THAT(Compute(), AreNear(Values({first * 2, 0, -third, fourth * 3})));
  spec_.combine_output = Combine::kMultiplySilu;
  EXPECT_THAT(Compute(), AreNear(Values({first * silu(2), 0, third * silu(-1), fourth * silu(3)})));
  spec_.combine_output = Combine::kMultiplySigmoid;
  EXPECT_THAT(
      Compute(),
      AreNear(Values({first * sigmoid(2), second / 2, third * sigmoid(-1), fourth * sigmoid(3)})));
  // Before the statistics: {2, 0}, {3, 3}.
  spec_.combine_output = Combine::kNone;
  spec_.combine_input = Combine::kMultiply;
  EXPECT_THAT(Compute(), AreNear(Values({std::sqrt(2), 0, 1, 1})));
}

TEST_F(ReferenceStagesTest, ActivatesBeforeTheSecondTensorJoinsTheOutput) {
  const float other[] = {-3, -3, -3, -3};
  segment_.other = other;
  spec_.activation = Activation::kRelu;
  spec_.combine_output = Combine::kAdd;
  EXPECT_THAT(Compute(), AreNear(Values({1 / 5.0 - 3, 7 / 5.0 - 3, -3, 1 / std::sqrt(5) - 3})));
}

TEST_F(ReferenceStagesTest, DividesByNormsThatAreAtLeastEps) {
  spec_.statistics = Statistics::kSumOfAbsolutes;
  EXPECT_THAT(Compute(), AreNear(Values({1 / 8.0, 7 / 8.0, -0.75, 0.25})));
  EXPECT_THAT(rstd_, ElementsAre(DoubleEq(1 / 8.0), DoubleEq(0.25), 0, 0));
  spec_.statistics = Statistics::kRootOfSquares;
  EXPECT_THAT(Compute(), AreNear(Values({1 / std::sqrt(50), 7 / std::sqrt(50), -3 / std::sqrt(10),
                                         1 / std::sqrt(10)})));
  spec_.statistics = Statistics::kLargestAbsolute;
  EXPECT_THAT(Compute(), AreNear(Values({1 / 7.0, 1, -1, 1 / 3.0})));
  spec_.eps = 5;
  EXPECT_THAT(Compute(), AreNear(Values({1 / 7.0, 1, -0.6, 0.2})));
}

TEST_F(ReferenceStagesTest, NormalizesPositionsAcrossChannels) {
  // One sample of two channels {1, 7} and {-3, 1}: positions {1, -3} and {7, 1}.
  UseMeanVariance();
  spec_.rows = Rows::kPosition;
  segment_.samples = 1;
  segment_.spatial = 2;
  EXPECT_THAT(Compute(), AreNear(Values({1, 1, -1, -1})));
  EXPECT_THAT(mean_, ElementsAre(-1, 4, 0, 0));
  EXPECT_THAT(rstd_, ElementsAre(0.5, DoubleEq(1 / 3.0), 0, 0));
  // Channels last, the same memory has the positions {1, 7} and {-3, 1}.
  spec_.layout = Layout::kChannelsLast;
  EXPECT_THAT(Compute(), AreNear(Values({-1, 1, -1, 1})));
  EXPECT_THAT(mean_, ElementsAre(4, -1, 0, 0));
}

TEST_F(ReferenceStagesTest, CountsRowsBySamplesGroupsAndPositions) {
  // One sample of two groups of one channel.
  UseMeanVariance();
  spec_.groups = 2;
  spec_.rows = Rows::kPosition;
  segment_.samples = 1;
  segment_.spatial = 2;
  Compute();
  EXPECT_THAT(mean_, ElementsAre(1, 7, -3, 1));
  spec_.layout = Layout::kChannelsLast;
  Compute();
  EXPECT_THAT(mean_, ElementsAre(1, -3, 7, 1));
}

TEST_F(ReferenceStagesTest, AddsWeightOffsetToAGammaThatIsThere) {
  const float gamma[] = {2, -1};
  spec_.weight_offset = 1;
  EXPECT_DOUBLE_EQ(Compute()[0], 1 / 5.0);
  params_.gamma.data = gamma;
  EXPECT_THAT(Compute(), AreNear(Values({3 / 5.0, 0, -9 / std::sqrt(5), 0})));
}

TEST_F(ReferenceStagesTest, ScalesAndShiftsEachSampleBeyondGammaAndBeta) {
  const float gamma[] = {2, 1}, beta[] = {1, 0};
  const float scale[] = {1, 0, 0.5f, -1}, shift[] = {0, 1, 2, 3};
  UseMeanVariance();
  params_.gamma.data = gamma;
  params_.beta.data = beta;
  spec_.scale = spec_.shift = true;
  segment_.scale = scale;
  segment_.shift = shift;
  // Normalized: {-1, 1} twice; with gamma and beta {-1, 1}.
  EXPECT_THAT(Compute(), AreNear(Values({-2, 2, -1.5 + 2, 3})));
  spec_.scale_offset = 0;
  EXPECT_THAT(Compute(), AreNear(Values({-1, 1, -0.5 + 2, -1 + 3})));
  spec_.scale = false;
  segment_.scale = nullptr;
  EXPECT_THAT(Compute(), AreNear(Values({-1, 2, 1, 4})));
}

TEST_F(ReferenceStagesTest, TakesEachSamplesStyleFromATable) {
  const float gamma[] = {1, 2, 3, 4, 5, 6}, beta[] = {0, 0, 1, 1, -1, -1};
  const std::int64_t index[] = {2, 1};
  const float weights[] = {1, 0, 0.5f, 0, 2, 1};
  UseMeanVariance();
  params_.gamma.data = gamma;
  params_.beta.data = beta;
  spec_.style = Style::kIndex;
  spec_.styles = 3;
  segment_.style_index = index;
  EXPECT_THAT(Compute(), AreNear(Values({-5 - 1, 6 - 1, -3 + 1, 4 + 1})));
  spec_.style = Style::kMix;
  segment_.style_index = nullptr;
  segment_.style_weights = weights;
  // Gamma {3.5, 5} and {11, 14}, beta -0.5 and 1.
  EXPECT_THAT(Compute(), AreNear(Values({-4, 4.5, -10, 15})));
  spec_.weight_offset = 1;
  EXPECT_THAT(Compute(), AreNear(Values({-5, 5.5, -11, 16})));
  params_.gamma = {};
  EXPECT_THAT(Compute(), AreNear(Values({-1.5, 0.5, 0, 2})));
}

TEST_F(ReferenceStagesTest, RefusesAStyleThatTheTableLacks) {
  const float gamma[] = {1, 2, 3, 4};
  params_.gamma.data = gamma;
  spec_.style = Style::kIndex;
  spec_.styles = 2;
  std::vector<double> y(4);
  for (const std::int64_t wrong : {std::int64_t{2}, std::int64_t{-1}}) {
    const std::int64_t index[] = {1, wrong};
    segment_.style_index = index;
    const Status status = NormalizeReference(spec_, params_, segment_, y.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "style_index[1]: " + std::to_string(wrong) + ", wanted a row of 2");
  }
}

TEST_F(ReferenceStagesTest, TakesMeanAndDeviationOfAStyleTensor) {
  const float style[] = {0, 0, 3, 10, 10, 10};  // Means 1 and 10, variances 2 and 0.
  spec_ = InstanceNormSpec(2, DType::kFloat32);
  spec_.eps = 0.25;
  spec_.style = Style::kTensor;
  segment_.samples = 1;
  segment_.spatial = 2;
  segment_.style_tensor = style;
  segment_.style_spatial = 3;
  const double first = 3 / std::sqrt(9.25) * 1.5, second = 2 / std::sqrt(4.25) * 0.5;
  EXPECT_THAT(Compute(), AreNear(Values({1 - first, 1 + first, 10 - second, 10 + second})));
  // Channels last: the rows are {1, -3} and {7, 1}, the styles {0, 3, 10} and {0, 10, 10}.
  spec_.layout = Layout::kChannelsLast;
  const double mean = 13 / 3.0, deviation = std::sqrt(109 / 3.0 - mean * mean + 0.25);
  EXPECT_NEAR(Compute()[0], mean + 2 / std::sqrt(4.25) * deviation, 1e-12);
}

TEST_F(ReferenceStagesTest, GivesTheScalesOfRowsAndBlocks) {
  spec_ = RmsNormSpec(300, DType::kFloat32);
  spec_.quantization = Quantization::kInt8;
  spec_.quantization_scale = QuantizationScale::kRow;
  segment_.samples = 2;
  std::vector<double> y(600, 0);
  y[5] = -254;
  y[130] = 12.7;
  y[299] = 25.4;
  EXPECT_THAT(ReferenceScales(spec_, segment_, y.data()), AreNear(Values({2, 0x1p-126})));
  spec_.quantization_scale = QuantizationScale::kBlock;
  EXPECT_THAT(ReferenceScales(spec_, segment_, y.data()), AreNear(Values({2, 0.1, 0.2, 0, 0, 0})));
  EXPECT_EQ(ReferenceScales(spec_, segment_, y.data())[5], 0x1p-126);
  spec_.quantization = Quantization::kFloat8E4M3;
  EXPECT_DOUBLE_EQ(ReferenceScales(spec_, segment_, y.data())[0], 254 / 448.0);
  std::vector<double> divided = y;
  DivideByScales(spec_, segment_, {2, 0.1, 0.2, 1, 1, 1}, divided.data());
  EXPECT_EQ(divided[5], -127);
  EXPECT_DOUBLE_EQ(divided[130], 127);
  EXPECT_DOUBLE_EQ(divided[299], 127);
  y[140] = std::nan("");
  EXPECT_TRUE(std::isnan(ReferenceScales(spec_, segment_, y.data())[1]));
}

}  // namespace
}  // namespace normd::norm

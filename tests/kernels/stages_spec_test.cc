// What ValidateSpec refuses of the stages: one case for each condition. norm_test.cc has those of
// the plain operations.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/norm.h"
#include "tests/kernels/refusal.h"

namespace normd::norm {
namespace {

class StagesSpecTest : public ::testing::Test {
 protected:
  void ExpectRefused(const std::string& beginning) const {
    ExpectInvalid(ValidateSpec(spec_, params_), beginning);
  }
  void ExpectAccepted() const {
    const Status status = ValidateSpec(spec_, params_);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  NormSpec spec_ = GroupNormSpec(4, 2, DType::kFloat32);
  NormParams params_;
};

TEST_F(StagesSpecTest, RefusesChannelsWhoseParametersOverflow) {
  spec_.channels = std::int64_t{1} << 60;
  ExpectRefused("channels: 1152921504606846976, wanted at least 1 and at most");
  spec_.channels -= 2;
  ExpectAccepted();
}

TEST_F(StagesSpecTest, RefusesValuesOutsideTheEnums) {
  const NormSpec spec = spec_;
  spec_.rows = static_cast<Rows>(2);
  ExpectRefused("rows: unknown value 2, wanted at most 1");
  spec_ = spec;
  spec_.combine_input = static_cast<Combine>(5);
  ExpectRefused("combine_input: unknown value 5, wanted at most 4");
  spec_ = spec;
  spec_.combine_output = static_cast<Combine>(255);
  ExpectRefused("combine_output: unknown value 255, wanted at most 4");
  spec_ = spec;
  spec_.style = static_cast<Style>(4);
  ExpectRefused("style: unknown value 4, wanted at most 3");
  spec_ = spec;
  spec_.quantization = static_cast<Quantization>(3);
  ExpectRefused("quantization: unknown value 3, wanted at most 2");
  spec_ = spec;
  spec_.quantization_scale = static_cast<QuantizationScale>(3);
  ExpectRefused("quantization_scale: unknown value 3, wanted at most 2");
  spec_ = spec;
  spec_.statistics = static_cast<Statistics>(6);
  ExpectRefused("statistics: unknown value 6, wanted at most 5");
}

TEST_F(StagesSpecTest, WantsASumForResidualOut) {
  spec_.residual_out = true;
  ExpectRefused("residual_out: set without residual or input_bias");
  params_.input_bias = kPresent;
  ExpectAccepted();
  params_.input_bias = {};
  spec_.residual = true;
  ExpectAccepted();
}

TEST_F(StagesSpecTest, WantsAResidualForAGate) {
  spec_.gate = true;
  params_.input_bias = kPresent;
  ExpectRefused("gate: set without residual");
  spec_.residual = true;
  ExpectAccepted();
}

TEST_F(StagesSpecTest, RefusesPositionsWithGivenStatistics) {
  spec_.rows = Rows::kPosition;
  ExpectAccepted();
  spec_.statistics = Statistics::kGiven;
  params_.mean = params_.variance = kPresent;
  ExpectRefused("rows: positions, but given");
}

TEST_F(StagesSpecTest, RefusesASecondTensorBesideASum) {
  spec_.combine_input = Combine::kAdd;
  ExpectAccepted();
  params_.input_bias = kPresent;
  ExpectRefused("combine_input: set beside residual or input_bias");
  params_.input_bias = {};
  spec_.residual = true;
  ExpectRefused("combine_input: set beside residual or input_bias");
}

TEST_F(StagesSpecTest, RefusesTwoPlacesForTheSecondTensor) {
  spec_.combine_output = Combine::kMultiplySilu;
  ExpectAccepted();
  spec_.combine_input = Combine::kAdd;
  ExpectRefused("combine_output: set beside combine_input");
}

TEST_F(StagesSpecTest, WantsOffsetsThatAreFiniteInTheAccumulationType) {
  for (double NormSpec::*offset : {&NormSpec::weight_offset, &NormSpec::scale_offset}) {
    const std::string name = offset == &NormSpec::weight_offset ? "weight_offset" : "scale_offset";
    for (const double value : {std::nan(""), -std::numeric_limits<double>::infinity(), 1e39}) {
      spec_ = GroupNormSpec(4, 2, DType::kBFloat16);
      spec_.*offset = value;
      ExpectRefused(name + ": ");
    }
    spec_.*offset = -3e38;
    ExpectAccepted();
    spec_ = GroupNormSpec(4, 2, DType::kFloat64);
    spec_.*offset = 1e39;
    ExpectAccepted();
    spec_.*offset = std::nan("");
    ExpectRefused(name + ": nan");
  }
}

TEST_F(StagesSpecTest, WantsStylesExactlyWithATable) {
  spec_.styles = 2;
  ExpectRefused("styles: 2, wanted 0");
  for (const Style style : {Style::kIndex, Style::kMix}) {
    spec_.style = style;
    params_.gamma = kPresent;
    ExpectAccepted();
    for (const std::int64_t styles : {std::int64_t{0}, std::int64_t{-1}}) {
      spec_.styles = styles;
      ExpectRefused("styles: " + std::to_string(styles) + ", wanted the rows of the table");
    }
    // 4 channels of 8 bytes each.
    for (const std::int64_t styles : {std::int64_t{1} << 58, kMax}) {
      spec_.styles = styles;
      ExpectRefused("styles: " + std::to_string(styles) + ", wanted the rows of the table");
    }
    spec_.styles = (std::int64_t{1} << 58) - 1;
    ExpectAccepted();
    params_.gamma = {};
    ExpectRefused("gamma and beta: missing, wanted a table");
    params_.beta = kPresent;
    ExpectAccepted();
    params_ = {};
  }
  spec_ = InstanceNormSpec(4, DType::kFloat32);
  spec_.style = Style::kTensor;
  spec_.styles = 1;
  ExpectRefused("styles: 1, wanted 0");
}

TEST_F(StagesSpecTest, WantsRowsOfOneChannelForAStyleTensor) {
  spec_.style = Style::kTensor;
  ExpectRefused("style: a second tensor");
  spec_.groups = 4;
  ExpectAccepted();
  spec_.rows = Rows::kPosition;
  ExpectRefused("style: a second tensor");
  spec_.rows = Rows::kGroup;
  spec_.statistics = Statistics::kMeanSquare;
  ExpectRefused("style: a second tensor");
  spec_.statistics = Statistics::kMeanVariance;
  params_.beta = kPresent;
  ExpectRefused("gamma and beta: present");
  params_ = {};
  params_.gamma = kPresent;
  ExpectRefused("gamma and beta: present");
}

TEST_F(StagesSpecTest, RefusesScalesWithoutQuantization) {
  spec_.output_scale = 1;
  ExpectRefused("output_scale: 1, wanted 0: the output is not quantized");
  spec_.output_scale = std::nan("");
  ExpectRefused("output_scale: nan, wanted 0");
  spec_.output_scale = 0;
  for (const QuantizationScale scale : {QuantizationScale::kRow, QuantizationScale::kBlock}) {
    spec_.quantization_scale = scale;
    ExpectRefused("quantization_scale: set, but");
  }
}

TEST_F(StagesSpecTest, WantsAStaticScaleThatIsANormalFloat) {
  spec_.quantization = Quantization::kInt8;
  // The last becomes an infinity as a float.
  for (const double scale :
       {0.0, -1.0, 1e-39, std::nan(""), std::numeric_limits<double>::infinity(), 3.5e38}) {
    spec_.output_scale = scale;
    ExpectRefused("output_scale: ");
  }
  for (const double scale : {0x1p-126, 0.5, 3.4e38}) {
    spec_.output_scale = scale;
    ExpectAccepted();
  }
}

TEST_F(StagesSpecTest, WantsNoStaticScaleWhereRowsHaveTheirOwn) {
  spec_.quantization = Quantization::kFloat8E4M3;
  for (const QuantizationScale scale : {QuantizationScale::kRow, QuantizationScale::kBlock}) {
    spec_.quantization_scale = scale;
    spec_.output_scale = 0;
    ExpectAccepted();
    spec_.output_scale = 0.5;
    ExpectRefused("output_scale: 0.5, wanted 0");
  }
}

TEST_F(StagesSpecTest, RefusesScalesOfRowsWithGivenStatistics) {
  spec_.quantization = Quantization::kInt8;
  spec_.quantization_scale = QuantizationScale::kRow;
  spec_.statistics = Statistics::kGiven;
  params_.mean = params_.variance = kPresent;
  ExpectRefused("quantization_scale: of rows, but");
}

TEST_F(StagesSpecTest, RefusesAnInputBiasOfNoTypeOrAlignment) {
  params_.input_bias = {memory, static_cast<DType>(5)};
  ExpectRefused("input_bias: dtype 5");
  params_.input_bias = {reinterpret_cast<const char*>(memory) + 1, DType::kFloat16};
  ExpectRefused("input_bias: not aligned");
}

TEST_F(StagesSpecTest, IsPlainWithoutStagesAlone) {
  EXPECT_TRUE(IsPlain(spec_, params_));
  spec_.residual = spec_.residual_out = true;
  EXPECT_TRUE(IsPlain(spec_, params_));
  const auto is_plain = [](const auto& set) {
    NormSpec spec = GroupNormSpec(4, 4, DType::kFloat32);
    set(spec);
    return IsPlain(spec, {});
  };
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.residual = spec.gate = true; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.scale = true; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.shift = true; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.rows = Rows::kPosition; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.style = Style::kTensor; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.combine_input = Combine::kAdd; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.combine_output = Combine::kAdd; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.quantization = Quantization::kInt8; }));
  EXPECT_FALSE(is_plain([](NormSpec& spec) { spec.statistics = Statistics::kRootOfSquares; }));
  params_.input_bias = kPresent;
  EXPECT_FALSE(IsPlain(spec_, params_));
}

}  // namespace
}  // namespace normd::norm

// The stages of version 6 through the C ABI: each field reaches the field of its name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/norm_c.h"

namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class NormCStagesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (norm_cpu_executor_create(1, &executor_) == NORM_UNSUPPORTED) {
      GTEST_SKIP() << norm_last_error();
    }
    spec_.struct_size = sizeof(spec_);
    spec_.statistics = NORM_MEAN_SQUARE;
    spec_.dtype = NORM_FLOAT32;
    spec_.channels = 2;
    spec_.groups = 1;
    params_.struct_size = sizeof(params_);
    tensors_.x = x_;
    tensors_.y = y_;
    tensors_.samples = tensors_.spatial = 1;
  }
  void TearDown() override { norm_cpu_executor_destroy(executor_); }

  norm_result Normalize() {
    const norm_batch batch = {sizeof(batch), sizeof(tensors_), &tensors_, 1};
    return norm_cpu_normalize_batch(executor_, &spec_, &params_, &batch);
  }
  void ExpectRefused(const std::string& why) {
    EXPECT_EQ(Normalize(), NORM_INVALID_ARGUMENT);
    EXPECT_THAT(norm_last_error(), HasSubstr(why));
  }
  std::vector<float> Y(std::size_t count) const { return {y_, y_ + count}; }

  norm_cpu_executor* executor_ = nullptr;
  norm_spec spec_ = {};
  norm_params params_ = {};
  norm_tensors tensors_ = {};
  const float x_[4] = {1, 7, 3, 3};  // The mean of the first two's squares is 25.
  float y_[4] = {NAN, NAN, NAN, NAN};
};

MATCHER(IsNear, "") { return std::fabs(std::get<0>(arg) - std::get<1>(arg)) < 1e-5f; }

// Channels 0 and 1 are 1 and 3 at the first position, 7 and 3 at the second.
TEST_F(NormCStagesTest, TakesRunsOfChannelsAndPositionsInTurn) {
  spec_.rows = NORM_ROWS_POSITION;
  spec_.layout = NORM_MIXED_RUNS;
  const int64_t runs[4] = {1, 2, 1, 1};
  std::copy(runs + 1, runs + 4, spec_.channel_runs);
  spec_.channel_runs[3] = 1;
  std::copy(runs, runs + 4, tensors_.spatial_runs);
  tensors_.spatial = 2;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  const float first = std::sqrt(5.0f), second = std::sqrt(29.0f);
  EXPECT_THAT(Y(4), Pointwise(IsNear(), {1 / first, 7 / second, 3 / first, 3 / second}));
  tensors_.spatial_runs[3] = 3;
  ExpectRefused("segments[0].spatial_runs: [1, 2, 1, 3], wanted sizes whose product is 2");
  spec_.channel_runs[3] = 0;
  ExpectRefused("channel_runs: [2, 1, 1, 0], wanted sizes whose product is 2 channels");
  spec_.layout = NORM_CHANNELS_LAST;
  ExpectRefused("channel_runs: [2, 1, 1, 0], wanted zeros");
}

TEST_F(NormCStagesTest, TakesTheInputsOfAnAdaptiveNorm) {
  // v = (x + bias) * gate + residual = {-2, 14}.
  const float gate[] = {2, 3}, residual[] = {-8, -10}, bias[] = {2, 1};
  const float scale[] = {0.5f, 1}, shift[] = {10, 20};
  float sum[2] = {NAN, NAN}, mean = NAN, rstd = NAN;
  spec_.statistics = NORM_MEAN_VARIANCE;
  spec_.residual = spec_.residual_out = spec_.gate = spec_.scale = spec_.shift = 1;
  spec_.scale_offset = 1;
  params_.input_bias = {bias, NORM_FLOAT32, 0};
  tensors_.residual = residual;
  tensors_.residual_out = sum;
  tensors_.gate = gate;
  tensors_.scale = scale;
  tensors_.shift = shift;
  tensors_.mean_out = &mean;
  tensors_.rstd_out = &rstd;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(sum, ElementsAre(-2, 14));
  EXPECT_FLOAT_EQ(mean, 6);
  EXPECT_NEAR(rstd, 0.125f, 1e-7f);
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {-1.5f + 10, 2 + 20.0f}));

  // In a structure of zeros the scale is the factor itself.
  spec_.scale_offset = 0;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {-0.5f + 10, 1 + 20.0f}));
}

TEST_F(NormCStagesTest, TakesTablesOfStyles) {
  const float gamma[] = {1, 1, 5, 10}, weights[] = {0.5f, 2};
  const int64_t index = 1;
  spec_.style = NORM_STYLE_INDEX;
  spec_.styles = 2;
  spec_.weight_offset = 1;
  params_.gamma = {gamma, NORM_FLOAT32, 0};
  tensors_.style_index = &index;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {6 / 5.0f, 11 * 7 / 5.0f}));

  spec_.style = NORM_STYLE_MIX;
  tensors_.style_index = nullptr;
  tensors_.style_weights = weights;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {11.5f / 5, 21.5f * 7 / 5}));
}

TEST_F(NormCStagesTest, TakesAStyleTensor) {
  const float style[] = {4, 8, 12};  // Mean 8, variance 32 / 3.
  spec_.statistics = NORM_MEAN_VARIANCE;
  spec_.channels = spec_.groups = 1;
  spec_.style = NORM_STYLE_TENSOR;
  tensors_.spatial = 2;
  tensors_.style_tensor = style;
  tensors_.style_spatial = 3;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  const float deviation = std::sqrt(32.0f / 3);
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {8 - deviation, 8 + deviation}));
}

TEST_F(NormCStagesTest, TakesASecondTensor) {
  const float other[] = {2, -1, 0, 3};
  tensors_.other = other;
  spec_.combine_output = NORM_COMBINE_MULTIPLY;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {0.4f, -1.4f}));

  spec_.combine_output = NORM_COMBINE_NONE;
  spec_.combine_input = NORM_COMBINE_ADD;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  const float rms = std::sqrt((9.0f + 36) / 2);
  EXPECT_THAT(Y(2), Pointwise(IsNear(), {3 / rms, 6 / rms}));
}

TEST_F(NormCStagesTest, TakesRowsOfPositionsAndNorms) {
  spec_.rows = NORM_ROWS_POSITION;
  spec_.statistics = NORM_SUM_OF_ABSOLUTES;
  tensors_.spatial = 2;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(4), Pointwise(IsNear(), {0.25f, 0.7f, 0.75f, 0.3f}));
}

TEST_F(NormCStagesTest, GivesQuantizedValuesAndTheirScales) {
  int8_t bytes[2] = {};
  float scale = NAN;
  tensors_.y = bytes;
  spec_.quantization = NORM_QUANTIZATION_INT8;
  spec_.output_scale = 0.05;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(bytes, ElementsAre(4, 28));

  spec_.quantization_scale = NORM_SCALE_ROW;
  spec_.output_scale = 0;
  tensors_.scale_out = &scale;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(bytes, ElementsAre(18, 127));
  EXPECT_THAT(scale, FloatNear(1.4f / 127, 1e-8f));

  spec_.quantization_scale = NORM_SCALE_BLOCK;
  spec_.quantization = NORM_QUANTIZATION_FLOAT8_E4M3;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(bytes, ElementsAre(0x68, 0x7e));  // 64 and 448
  EXPECT_THAT(scale, FloatNear(1.4f / 448, 1e-8f));
}

TEST_F(NormCStagesTest, TakesPitches) {
  const float x[] = {1, 7, NAN, 3, 3};
  tensors_.x = x;
  tensors_.samples = 2;
  tensors_.x_pitch = 3;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(Y(4), Pointwise(IsNear(), {0.2f, 1.4f, 1.0f, 1.0f}));

  float y[] = {NAN, NAN, -5, -6, NAN, NAN};
  tensors_.y = y;
  tensors_.y_pitch = 4;
  ASSERT_EQ(Normalize(), NORM_OK) << norm_last_error();
  EXPECT_THAT(y, Pointwise(IsNear(), {0.2f, 1.4f, -5.0f, -6.0f, 1.0f, 1.0f}));

  tensors_.x_pitch = 1;
  ExpectRefused("segments[0].x_pitch: 1, wanted 0 or at least the 2 elements of a sample");
}

TEST_F(NormCStagesTest, RefusesValuesThatNoStageHas) {
  const auto refused_alone = [&]<typename Field>(Field norm_spec::*field,
                                                 std::type_identity_t<Field> value,
                                                 const std::string& why) {
    const norm_spec good = spec_;
    spec_.*field = value;
    ExpectRefused(why);
    spec_ = good;
  };
  refused_alone(&norm_spec::rows, 2, "rows: unknown");
  refused_alone(&norm_spec::statistics, 6, "statistics: unknown");
  refused_alone(&norm_spec::style, 4, "style: unknown");
  refused_alone(&norm_spec::styles, 3, "styles: 3");
  refused_alone(&norm_spec::combine_input, 5, "combine_input: unknown");
  refused_alone(&norm_spec::combine_output, 5, "combine_output: unknown");
  refused_alone(&norm_spec::quantization, 3, "quantization: unknown");
  refused_alone(&norm_spec::quantization_scale, 3, "quantization_scale: unknown");
  refused_alone(&norm_spec::output_scale, 1e-45,
                "output_scale: 1e-45, wanted 0: the output is not quantized");
  refused_alone(&norm_spec::weight_offset, INFINITY, "weight_offset");
  refused_alone(&norm_spec::scale_offset, NAN, "scale_offset");
}

TEST_F(NormCStagesTest, RefusesTensorsThatTheSpecHasNoUseFor) {
  const float floats[4] = {};
  const int64_t index = 0;
  const auto refused_alone = [&](auto norm_tensors::*field, auto value, const std::string& why) {
    tensors_.*field = value;
    ExpectRefused("segments[0]." + why);
    tensors_.*field = {};
  };
  refused_alone(&norm_tensors::other, floats, "other: set");
  refused_alone(&norm_tensors::gate, floats, "gate: set");
  refused_alone(&norm_tensors::scale, floats, "scale: set");
  refused_alone(&norm_tensors::shift, floats, "shift: set");
  refused_alone(&norm_tensors::style_index, &index, "style_index: set");
  refused_alone(&norm_tensors::style_weights, floats, "style_weights: set");
  refused_alone(&norm_tensors::style_tensor, floats, "style_tensor: set");
  refused_alone(&norm_tensors::style_spatial, 2, "style_spatial: 2");
  refused_alone(&norm_tensors::mean_out, y_, "mean_out: set");
  refused_alone(&norm_tensors::scale_out, y_, "scale_out: set");
  EXPECT_EQ(Normalize(), NORM_OK) << norm_last_error();
}

}  // namespace

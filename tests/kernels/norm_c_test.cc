#include "kernels/norm_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

norm_spec LayerNorm(int64_t elements) {
  norm_spec spec = {};
  spec.struct_size = sizeof(spec);
  spec.statistics = NORM_MEAN_VARIANCE;
  spec.dtype = NORM_FLOAT32;
  spec.channels = elements;
  spec.groups = 1;
  return spec;
}

norm_params NoParams() {
  norm_params params = {};
  params.struct_size = sizeof(params);
  return params;
}

class NormCCpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (norm_cpu_executor_create(1, &executor_) == NORM_UNSUPPORTED) {
      GTEST_SKIP() << norm_last_error();
    }
    ASSERT_NE(executor_, nullptr);
  }
  void TearDown() override { norm_cpu_executor_destroy(executor_); }

  norm_cpu_executor* executor_ = nullptr;
};

TEST_F(NormCCpuTest, NormalizesARowWithGammaAndBeta) {
  const std::vector<float> x = {1, 3, 5, 7};
  const std::vector<double> gamma = {1, 1, 2, 1};
  const std::vector<float> beta = {0, 0, 0, 10};
  std::vector<float> y(4, NAN);
  const norm_spec spec = LayerNorm(4);
  norm_params params = NoParams();
  params.gamma = {gamma.data(), NORM_FLOAT64, 0};
  params.beta = {beta.data(), NORM_FLOAT32, 0};
  const norm_segment segment = {x.data(), y.data(), 1, 1};

  ASSERT_EQ(norm_cpu_normalize(executor_, &spec, &params, &segment, 1), NORM_OK)
      << norm_last_error();

  const double rstd = 1 / std::sqrt(5.0);
  EXPECT_NEAR(y[0], -3 * rstd, 1e-6);
  EXPECT_NEAR(y[1], -1 * rstd, 1e-6);
  EXPECT_NEAR(y[2], 2 * rstd, 1e-6);
  EXPECT_NEAR(y[3], 3 * rstd + 10, 1e-6);
}

TEST_F(NormCCpuTest, RefusesAnUnknownDTypeAndKeepsTheReason) {
  norm_spec spec = LayerNorm(4);
  spec.dtype = 9;
  const norm_params params = NoParams();

  EXPECT_EQ(norm_cpu_normalize(executor_, &spec, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_THAT(norm_last_error(), HasSubstr("dtype: 9"));
}

TEST_F(NormCCpuTest, RefusesAParameterDTypeThatEightBitsWouldMakeValid) {
  const norm_spec spec = LayerNorm(1);
  norm_params params = NoParams();
  const float one = 1;
  params.gamma = {&one, 0x101, 0};

  EXPECT_EQ(norm_cpu_normalize(executor_, &spec, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_THAT(norm_last_error(), HasSubstr("gamma"));
}

TEST_F(NormCCpuTest, RefusesAStructureOfAnOlderLibrary) {
  norm_spec spec = LayerNorm(4);
  spec.struct_size = 8;
  const norm_params params = NoParams();

  EXPECT_EQ(norm_cpu_normalize(executor_, &spec, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_THAT(norm_last_error(), HasSubstr("spec.struct_size: 8"));
}

// y = slope * -1 through given statistics, in float64.
double SlopeOf(const norm_cpu_executor* executor, const norm_spec& spec) {
  const double x = -1, mean = 0, variance = 1;
  double y = NAN;
  norm_params params = NoParams();
  params.mean = {&mean, NORM_FLOAT64, 0};
  params.variance = {&variance, NORM_FLOAT64, 0};
  const norm_segment segment = {&x, &y, 1, 1};
  EXPECT_EQ(norm_cpu_normalize(executor, &spec, &params, &segment, 1), NORM_OK)
      << norm_last_error();
  return -y;
}

TEST_F(NormCCpuTest, TakesTheSpecOfVersionThree) {
  norm_spec spec = LayerNorm(1);
  spec.statistics = NORM_GIVEN;
  spec.dtype = NORM_FLOAT64;
  spec.activation = NORM_LEAKY_RELU;
  spec.leaky_slope = 0.1f;
  // What lies behind the structure of that version is not read.
  spec.struct_size = 40;
  spec.leaky_slope_double = 7;
  EXPECT_EQ(SlopeOf(executor_, spec), static_cast<double>(0.1f));
}

TEST_F(NormCCpuTest, TakesALeakySlopeInDouble) {
  norm_spec spec = LayerNorm(1);
  spec.statistics = NORM_GIVEN;
  spec.dtype = NORM_FLOAT64;
  spec.activation = NORM_LEAKY_RELU;
  spec.leaky_slope = 0.1f;
  EXPECT_EQ(SlopeOf(executor_, spec), static_cast<double>(0.1f));
  spec.leaky_slope_double = 0.1;
  EXPECT_EQ(SlopeOf(executor_, spec), 0.1);
}

TEST_F(NormCCpuTest, RefusesNullPointers) {
  const norm_spec spec = LayerNorm(4);
  const norm_params params = NoParams();

  EXPECT_EQ(norm_cpu_normalize(nullptr, &spec, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_THAT(norm_last_error(), HasSubstr("executor"));
  EXPECT_EQ(norm_cpu_normalize(executor_, nullptr, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_EQ(norm_cpu_normalize(executor_, &spec, nullptr, nullptr, 0), NORM_INVALID_ARGUMENT);
  EXPECT_EQ(norm_cpu_normalize(executor_, &spec, &params, nullptr, 1), NORM_INVALID_ARGUMENT);
  EXPECT_EQ(norm_cpu_executor_create(1, nullptr), NORM_INVALID_ARGUMENT);
}

TEST_F(NormCCpuTest, ComputesTheFusedLayer) {
  // z = {1, 3, 5, -1}: mean 2, variance 5.
  const std::vector<float> weight = {1, 0, 0, 1, 1, 1, 2, -1};
  const std::vector<float> bias = {0, 0, 1, 0};
  const std::vector<float> x = {1, 3};
  const std::vector<float> y = {1, 2, 0, -1};
  std::vector<float> out(4, NAN);
  norm_linear_spec spec = {};
  spec.struct_size = sizeof(spec);
  spec.dtype = NORM_FLOAT32;
  spec.in_features = 2;
  spec.out_features = 4;
  spec.add = spec.multiply = 1;
  norm_linear_params params = {};
  params.struct_size = sizeof(params);
  params.weight = {weight.data(), NORM_FLOAT32, 0};
  params.bias = {bias.data(), NORM_FLOAT32, 0};
  norm_cpu_linear* linear = nullptr;
  ASSERT_EQ(norm_cpu_linear_create(executor_, &spec, &params, &linear), NORM_OK)
      << norm_last_error();
  norm_linear_segment segment = {x.data(), y.data(), out.data(), 1};
  ASSERT_EQ(norm_cpu_linear_norm(linear, &segment, 1), NORM_OK) << norm_last_error();
  const double rstd = 1 / std::sqrt(5.0);
  const double n[] = {-rstd, rstd, 3 * rstd, -3 * rstd};
  for (std::size_t i = 0; i < 4; ++i) {
    const double second = static_cast<double>(y[i]);
    EXPECT_NEAR(out[i], (n[i] + second) * second, 1e-6) << i;
  }
  segment.y = nullptr;
  EXPECT_EQ(norm_cpu_linear_norm(linear, &segment, 1), NORM_INVALID_ARGUMENT);
  EXPECT_THAT(norm_last_error(), HasSubstr("segments[0].y"));
  norm_cpu_linear_destroy(linear);
}

TEST(NormCTest, TheLibraryHasTheVersionOfTheHeader) {
  EXPECT_EQ(norm_abi_version(), static_cast<uint32_t>(NORM_C_ABI_VERSION));
}

TEST(NormCTest, AnotherThreadsErrorIsNotSeen) {
  EXPECT_NE(norm_cpu_executor_create(1, nullptr), NORM_OK);
  std::string seen = "unset";
  std::thread([&seen] { seen = norm_last_error(); }).join();
  EXPECT_THAT(seen, IsEmpty());
}

TEST(NormCTest, ANegativeThreadCountIsRefused) {
  norm_cpu_executor* executor = nullptr;
  const norm_result result = norm_cpu_executor_create(-1, &executor);
  EXPECT_TRUE(result == NORM_INVALID_ARGUMENT || result == NORM_UNSUPPORTED) << result;
  EXPECT_EQ(executor, nullptr);
}

TEST(NormCTest, CudaWithoutADeviceIsRefusedWithAReason) {
  norm_cuda_device* device = nullptr;
  const norm_result result = norm_cuda_device_open(1 << 20, &device);
  EXPECT_TRUE(result == NORM_UNSUPPORTED || result == NORM_DEVICE_ERROR) << result;
  EXPECT_EQ(device, nullptr);
  EXPECT_STRNE(norm_last_error(), "");
}

TEST(NormCTest, TheFusedLayerOnCudaWithoutADeviceIsRefusedWithAReason) {
  norm_linear_spec spec = {};
  norm_linear_params params = {};
  norm_linear_segment segment = {};
  norm_cuda_launch launch = {};
  size_t bytes = 0;
  for (const norm_result result :
       {norm_cuda_linear_weight_bytes(nullptr, &spec, &bytes),
        norm_cuda_linear_prepare(nullptr, &spec, &params, &bytes, 0, nullptr),
        norm_cuda_linear_workspace_bytes(nullptr, &spec, 1, nullptr, &bytes),
        norm_cuda_linear_norm(nullptr, &spec, &bytes, &segment, 1, &launch)}) {
    EXPECT_TRUE(result == NORM_UNSUPPORTED || result == NORM_INVALID_ARGUMENT) << result;
    EXPECT_STRNE(norm_last_error(), "");
  }
  EXPECT_EQ(bytes, 0U);
}

}  // namespace

#include "kernels/norm_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

extern "C" int normalize_from_c(const float* x, const float* residual, float* y, float* sum,
                                int64_t elements);

namespace {

using ::testing::ElementsAre;
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

// One sample with one position.
norm_tensors Tensors(const float* x, float* y) {
  norm_tensors tensors = {};
  tensors.x = x;
  tensors.y = y;
  tensors.samples = tensors.spatial = 1;
  return tensors;
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

TEST_F(NormCCpuTest, RefusesWhatItDoesNotKnowAndKeepsTheReason) {
  const auto expect_refused = [&](const norm_spec& spec, const norm_params& params,
                                  const char* reason) {
    EXPECT_EQ(norm_cpu_normalize(executor_, &spec, &params, nullptr, 0), NORM_INVALID_ARGUMENT);
    EXPECT_THAT(norm_last_error(), HasSubstr(reason));
  };
  norm_spec spec = LayerNorm(4);
  spec.dtype = 9;
  expect_refused(spec, NoParams(), "dtype: 9");
  spec = LayerNorm(4);
  spec.struct_size = 8;
  expect_refused(spec, NoParams(), "spec.struct_size: 8");
  norm_params params = NoParams();
  const float one = 1;
  params.gamma = {&one, 0x101, 0};  // A type that eight bits would make valid.
  expect_refused(LayerNorm(1), params, "gamma");
}

// y = slope * -1 through given statistics.
TEST_F(NormCCpuTest, TakesALeakySlopeInDouble) {
  norm_spec spec = LayerNorm(1);
  spec.statistics = NORM_GIVEN;
  spec.dtype = NORM_FLOAT64;
  spec.activation = NORM_LEAKY_RELU;
  spec.leaky_slope = 0.1;
  const double x = -1, mean = 0, variance = 1;
  double y = NAN;
  norm_params params = NoParams();
  params.mean = {&mean, NORM_FLOAT64, 0};
  params.variance = {&variance, NORM_FLOAT64, 0};
  const norm_segment segment = {&x, &y, 1, 1};
  ASSERT_EQ(norm_cpu_normalize(executor_, &spec, &params, &segment, 1), NORM_OK)
      << norm_last_error();
  EXPECT_EQ(y, -0.1);
}

TEST_F(NormCCpuTest, ACallerInCGetsItsResults) {
  const std::vector<float> x = {1, 2, 3, 4};
  const std::vector<float> residual = {2, 2, 1, 0};
  std::vector<float> y(4, NAN);
  std::vector<float> sum(4, NAN);
  ASSERT_EQ(normalize_from_c(x.data(), residual.data(), y.data(), sum.data(), 2), NORM_OK)
      << norm_last_error();
  EXPECT_THAT(sum, ElementsAre(3, 4, 4, 4));
  const double rms = std::sqrt(12.5);
  EXPECT_NEAR(y[0], 2 * 3 / rms, 1e-6);
  EXPECT_NEAR(y[1], 2 * 4 / rms, 1e-6);
  EXPECT_NEAR(y[2], 3, 1e-6);
  EXPECT_NEAR(y[3], 3, 1e-6);
}

TEST_F(NormCCpuTest, ABatchTakesResidualsAndParametersOfItsOwn) {
  const std::vector<float> x = {1, 2, 3, 4};
  const std::vector<float> residual = {2, 2, 1, 0};
  const std::vector<float> two = {2, 2};
  const std::vector<float> three = {3, 3};
  std::vector<float> y(4, NAN);
  std::vector<float> sum(4, NAN);
  norm_spec spec = LayerNorm(2);
  spec.statistics = NORM_MEAN_SQUARE;
  spec.residual = spec.residual_out = 1;
  norm_params params = NoParams();
  params.gamma = {two.data(), NORM_FLOAT32, 0};
  norm_params own = NoParams();
  own.gamma = {three.data(), NORM_FLOAT32, 0};
  // Tensors of a later version are larger, and what is new in them is not looked at.
  struct Later {
    norm_tensors known;
    double added[3];
  } tensors[2] = {};
  for (int i = 0; i < 2; ++i) {
    norm_tensors& known = tensors[i].known;
    known = Tensors(&x[2 * i], &y[2 * i]);
    known.residual = &residual[2 * i];
    known.residual_out = &sum[2 * i];
    tensors[i].added[0] = NAN;
  }
  tensors[1].known.params = &own;
  const norm_batch batch = {sizeof(batch), sizeof(Later), &tensors[0].known, 2};
  ASSERT_EQ(norm_cpu_normalize_batch(executor_, &spec, &params, &batch), NORM_OK)
      << norm_last_error();
  EXPECT_THAT(sum, ElementsAre(3, 4, 4, 4));
  const double rms = std::sqrt(12.5);
  EXPECT_NEAR(y[0], 2 * 3 / rms, 1e-6);
  EXPECT_NEAR(y[1], 2 * 4 / rms, 1e-6);
  EXPECT_NEAR(y[2], 3, 1e-6);
  EXPECT_NEAR(y[3], 3, 1e-6);
}

TEST_F(NormCCpuTest, ABatchOfManyTensorsIsTakenWhole) {
  constexpr std::size_t kTensors = 1000;
  std::vector<float> x(2 * kTensors);
  std::vector<float> y(2 * kTensors, NAN);
  std::vector<norm_tensors> tensors(kTensors);
  // Every other tensor has parameters of its own.
  const std::vector<float> two = {2, 2};
  std::vector<norm_params> own(kTensors, NoParams());
  for (std::size_t i = 0; i < kTensors; ++i) {
    x[2 * i] = static_cast<float>(i);
    x[2 * i + 1] = static_cast<float>(i) + 2;
    tensors[i] = Tensors(&x[2 * i], &y[2 * i]);
    own[i].gamma = {two.data(), NORM_FLOAT32, 0};
    if (i % 2 == 1) tensors[i].params = &own[i];
  }
  const norm_spec spec = LayerNorm(2);
  const norm_params params = NoParams();
  const norm_batch batch = {sizeof(batch), sizeof(norm_tensors), tensors.data(), kTensors};
  ASSERT_EQ(norm_cpu_normalize_batch(executor_, &spec, &params, &batch), NORM_OK);
  for (std::size_t i = 0; i < kTensors; ++i) {
    const float factor = i % 2 == 1 ? 2 : 1;
    EXPECT_NEAR(y[2 * i], -factor, 1e-6) << i;
    EXPECT_NEAR(y[2 * i + 1], factor, 1e-6) << i;
  }
}

TEST_F(NormCCpuTest, RefusesABatchThatIsWrong) {
  const norm_spec spec = LayerNorm(2);
  const norm_params params = NoParams();
  float x[2] = {};
  norm_params small = NoParams();
  small.struct_size = 8;
  norm_tensors tensors = Tensors(x, x);
  norm_batch batch = {sizeof(batch), sizeof(tensors), &tensors, 1};
  const auto refused = [&](const norm_batch* wrong) {
    EXPECT_EQ(norm_cpu_normalize_batch(executor_, &spec, &params, wrong), NORM_INVALID_ARGUMENT);
    return std::string(norm_last_error());
  };
  EXPECT_THAT(refused(nullptr), HasSubstr("batch: null"));
  batch.struct_size = 8;
  EXPECT_THAT(refused(&batch), HasSubstr("batch.struct_size: 8, wanted at least"));
  batch.struct_size = sizeof(batch);
  batch.tensors_size = 32;
  EXPECT_THAT(refused(&batch), HasSubstr("batch.tensors_size: 32, wanted at least"));
  batch.tensors_size = sizeof(tensors);
  batch.tensors = nullptr;
  EXPECT_THAT(refused(&batch), HasSubstr("batch.tensors: null"));
  batch.tensors = &tensors;
  tensors.residual = x;
  EXPECT_THAT(refused(&batch), HasSubstr("segments[0].residual: set"));
  tensors.residual = nullptr;
  tensors.params = &small;
  EXPECT_THAT(refused(&batch), HasSubstr("params.struct_size: 8"));
  batch.count = 0;
  batch.tensors = nullptr;
  EXPECT_EQ(norm_cpu_normalize_batch(executor_, &spec, &params, &batch), NORM_OK);
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

TEST(NormCTest, ThreadCountsBelowZeroOrBeyondReasonAreRefused) {
  for (const std::int32_t threads : {-1, 4097, std::numeric_limits<std::int32_t>::max()}) {
    norm_cpu_executor* executor = nullptr;
    const norm_result result = norm_cpu_executor_create(threads, &executor);
    EXPECT_TRUE(result == NORM_INVALID_ARGUMENT || result == NORM_UNSUPPORTED) << result;
    EXPECT_EQ(executor, nullptr);
  }
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

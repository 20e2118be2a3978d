// The error that kernels/cuda/README.md promises for the fused layer's products on tensor cores, on
// a model of them: products of float16 are exact; the 16 products of an instruction and the sum are
// cut to the place of two bits below the last one of the largest, added, and cut to float32 (Fasi,
// Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021; the number of
// bits of 9.0 follows Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", 2025, and is
// varied here). What the kernels do with it is arithmetic on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/linear/linear_plan.h"

namespace normd::norm::cuda {
namespace {

constexpr int kIn = 8192;
constexpr int kOut = 48;
constexpr int kSamples = 3;
constexpr int kProduct = 16;  // Elements that one instruction multiplies.

// A floating-point format: bits of the significand, exponent of the smallest normal number.
struct Format {
  int bits;
  int min_exponent;
};
constexpr Format kFloat16{11, -14};
constexpr Format kBFloat16{8, -126};

double Round(double value, Format format) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double unit = std::ldexp(1.0, exponent - format.bits + 1);
  return std::nearbyint(value / unit) * unit;
}

// The parts of a row, not scaled back.
struct Operand {
  std::vector<double> high;
  std::vector<double> low;
  int exponent = 0;
};

Operand Split(const float* row, Format format, bool scaled) {
  Operand operand;
  float largest = 0;
  for (int i = 0; i < kIn; ++i) largest = std::max(largest, std::fabs(row[i]));
  if (scaled) operand.exponent = 14 - std::ilogb(largest);
  for (int i = 0; i < kIn; ++i) {
    const double value = std::ldexp(row[i], operand.exponent);
    operand.high.push_back(Round(value, format));
    operand.low.push_back(Round(value - operand.high.back(), format));
  }
  return operand;
}

// What an instruction adds to a sum.
float MultiplyAdd(float sum, const double* a, const double* b, int extra_bits) {
  double largest = std::fabs(sum);
  for (int i = 0; i < kProduct; ++i) largest = std::max(largest, std::fabs(a[i] * b[i]));
  if (largest == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 23 - extra_bits);
  double total = std::trunc(sum / unit);
  for (int i = 0; i < kProduct; ++i) total += std::trunc(a[i] * b[i] / unit);
  if (total == 0) return 0;
  const double last = std::ldexp(1.0, std::ilogb(total) - 23);
  return static_cast<float>(std::trunc(total / last) * last * unit);
}

// One element of z: the kernel's order of products and sums. steps_per_sum 0: one sum.
double Product(const Operand& x, const Operand& w, int steps_per_sum, bool odd, int extra_bits) {
  const int steps = kIn / kStepElements;
  int count = steps_per_sum == 0 ? steps : odd ? (steps_per_sum + 1) / 2 : steps_per_sum;
  float total = 0;
  for (int step = 0; step < steps;) {
    float sum = 0;
    for (const int end = std::min(step + count, steps); step < end; ++step) {
      const auto multiply = [&](const std::vector<double>& a, const std::vector<double>& b) {
        for (int i = 0; i < kStepElements; i += kProduct) {
          const std::size_t at = static_cast<std::size_t>(step * kStepElements + i);
          sum = MultiplyAdd(sum, &a[at], &b[at], extra_bits);
        }
      };
      multiply(x.high, w.low);
      multiply(x.low, w.high);
      multiply(x.high, w.high);
    }
    total += sum;
    count = steps_per_sum;
  }
  return std::ldexp(total, -x.exponent - w.exponent);
}

// x in [0, 1) as the seed draws it; weights as PyTorch's Linear draws them.
class LinearSplitTest : public ::testing::Test {
 protected:
  LinearSplitTest() : x_(kSamples * kIn), w_(kOut * kIn), exact_(kSamples * kOut) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(0, 1);
    const float scale = 1 / std::sqrt(static_cast<float>(kIn));
    for (float& value : x_) value = uniform(random);
    for (float& value : w_) value = (2 * uniform(random) - 1) * scale;
    ForEach([&](std::size_t i, const float* x, const float* w) {
      for (int k = 0; k < kIn; ++k) exact_[i] += static_cast<double>(x[k]) * w[k];
    });
  }

  template <typename Function>
  void ForEach(Function function) const {
    for (std::size_t i = 0; i < exact_.size(); ++i) {
      function(i, &x_[i / kOut * kIn], &w_[i % kOut * kIn]);
    }
  }

  // ||z - exact|| / ||exact||.
  template <typename Function>
  double RelativeError(Function z) const {
    double error = 0, norm = 0;
    ForEach([&](std::size_t i, const float* x, const float* w) {
      const double difference = z(i, x, w) - exact_[i];
      error += difference * difference;
      norm += exact_[i] * exact_[i];
    });
    return std::sqrt(error / norm);
  }

  double ErrorOfParts(Format format, bool scaled, int steps_per_sum, int extra_bits) const {
    std::vector<Operand> x, w;
    for (int i = 0; i < kSamples; ++i) x.push_back(Split(&x_[i * kIn], format, scaled));
    for (int i = 0; i < kOut; ++i) w.push_back(Split(&w_[i * kIn], format, scaled));
    return RelativeError([&](std::size_t i, const float*, const float*) {
      const std::size_t feature = i % kOut;
      return Product(x[i / kOut], w[feature], steps_per_sum, feature % 2 != 0, extra_bits);
    });
  }

  std::vector<float> x_;
  std::vector<float> w_;
  std::vector<double> exact_;
};

TEST_F(LinearSplitTest, TwoFloat16PartsKeepTheErrorOfAFloat32Sum) {
  const double float32 = RelativeError([](std::size_t, const float* x, const float* w) {
    float sum = 0;
    for (int k = 0; k < kIn; ++k) sum = std::fma(x[k], w[k], sum);
    return static_cast<double>(sum);
  });
  LinearNormSpec spec;
  spec.in_features = kIn;
  spec.out_features = kOut;
  DeviceLimits hopper;
  hopper.compute_capability = 90;
  const int steps = MakeLinearPlan(spec, hopper, 1).steps_per_sum;
  for (int extra_bits : {0, 1, 2}) {
    const double error = ErrorOfParts(kFloat16, true, steps, extra_bits);
    EXPECT_LT(error, float32) << extra_bits;
    EXPECT_LT(error, 1e-6) << extra_bits;
    // One sum over all elements would not do.
    EXPECT_GT(ErrorOfParts(kFloat16, true, 0, extra_bits), 2 * float32) << extra_bits;
  }
}

// Why the parts are float16: what two bfloat16 parts leave out costs more than any sum.
TEST_F(LinearSplitTest, TwoBFloat16PartsDoNot) {
  EXPECT_GT(ErrorOfParts(kBFloat16, false, 1, 2), 3e-6);
}

}  // namespace
}  // namespace normd::norm::cuda

// The error that kernels/cuda/README.md promises for the fused layer's products on tensor cores, on
// a model of them: products of float16 are exact; the 16 products of an instruction and the sum are
// cut to the place of two bits below the last one of the largest, added, and cut to float32 (Fasi,
// Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021; the number of
// bits of 9.0 follows Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", 2025, and is
// varied here). What the kernels do with it is arithmetic on the host.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/linear/linear_plan.h"

namespace normd::norm::cuda {
namespace {

using ::testing::HasSubstr;

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

// How the fused layer is computed, on devices that need not be there.

constexpr DType kLinearTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kTf32, Precision::kBFloat16,
                                     Precision::kFloat32Strict};

DeviceLimits Device(int compute_capability, int multiprocessors) {
  DeviceLimits limits;
  limits.compute_capability = compute_capability;
  limits.multiprocessors = multiprocessors;
  return limits;
}

LinearNormSpec Spec(std::int64_t in, std::int64_t out, DType dtype, Precision precision) {
  LinearNormSpec spec;
  spec.in_features = in;
  spec.out_features = out;
  spec.dtype = dtype;
  spec.precision = precision;
  return spec;
}

std::vector<LinearNormSpec> Specs() {
  std::vector<LinearNormSpec> specs;
  for (const auto& [in, out] : {std::pair{1, 1}, {63, 257}, {512, 512}, {8192, 8192}}) {
    for (DType dtype : kLinearTypes) {
      for (Precision precision : kPrecisions) specs.push_back(Spec(in, out, dtype, precision));
    }
  }
  return specs;
}

std::vector<std::int64_t> Samples() { return {1, 2, 16, 17, 64, 127, 128, 129, 1000, 1024}; }

TEST(LinearPlanTest, TakesTensorCoresOnHopperUnlessStrict) {
  for (const LinearNormSpec& spec : Specs()) {
    const bool tensor = MakeLinearPlan(spec, Device(90, 132), 64).path == LinearPath::kTensor;
    EXPECT_EQ(tensor, spec.precision != Precision::kFloat32Strict) << Name(spec.precision);
    for (int other : {75, 80, 89, 100, 120}) {
      EXPECT_EQ(MakeLinearPlan(spec, Device(other, 132), 64).path, LinearPath::kPlain) << other;
    }
  }
}

TEST(LinearPlanTest, SplitsFloat32ValuesInTwoAndShorterOnesNot) {
  const DeviceLimits hopper = Device(90, 132);
  for (DType dtype : kLinearTypes) {
    const LinearPlan plan = MakeLinearPlan(Spec(64, 64, dtype, Precision::kFloat32), hopper, 1);
    EXPECT_EQ(plan.x_parts, dtype == DType::kFloat32 ? 2 : 1);
    EXPECT_EQ(plan.weight_parts, 2);
    EXPECT_GT(plan.steps_per_sum, 0);
    for (Precision precision : {Precision::kTf32, Precision::kBFloat16}) {
      const LinearPlan one = MakeLinearPlan(Spec(64, 64, dtype, precision), hopper, 1);
      EXPECT_EQ(one.x_parts * one.weight_parts, 1);
    }
  }
}

TEST(LinearPlanTest, ReadsXInPlaceOnlyWhereItIsItsOwnOperand) {
  for (const LinearNormSpec& spec : Specs()) {
    const LinearPlan plan = MakeLinearPlan(spec, Device(90, 132), 64);
    const bool same = plan.path == LinearPath::kTensor && plan.x_parts == 1 &&
                      spec.dtype == (plan.format == OperandFormat::kBFloat16 ? DType::kBFloat16
                                                                             : DType::kFloat16);
    EXPECT_EQ(plan.reads_x, same) << Name(spec.dtype) << " " << Name(spec.precision);
    EXPECT_FALSE(MakeLinearPlan(spec, Device(80, 108), 64).reads_x);
  }
}

// What decides bits must not depend on the number of samples, nor on the tile.
TEST(LinearPlanTest, ChoosesArithmeticWhateverTheNumberOfSamples) {
  for (int capability : {80, 90}) {
    for (const LinearNormSpec& spec : Specs()) {
      const LinearPlan one = MakeLinearPlan(spec, Device(capability, 132), 1);
      for (std::int64_t samples : Samples()) {
        for (LinearTile tile : kLinearTiles) {
          const LinearPlan plan = MakeLinearPlan(spec, Device(capability, 132), samples, tile);
          EXPECT_EQ(plan.path, one.path);
          EXPECT_EQ(plan.format, one.format);
          EXPECT_EQ(plan.x_parts, one.x_parts);
          EXPECT_EQ(plan.weight_parts, one.weight_parts);
          EXPECT_EQ(plan.steps_per_sum, one.steps_per_sum);
        }
      }
    }
  }
}

// A tile's samples are what its operand is laid out for, and what a kernel exists for.
TEST(LinearPlanTest, TakesTilesThatKernelsExistFor) {
  for (const LinearNormSpec& spec : Specs()) {
    for (std::int64_t samples : Samples()) {
      for (LinearTile tile : kLinearTiles) {
        const LinearPlan plan = MakeLinearPlan(spec, Device(90, 132), samples, tile);
        if (plan.path != LinearPath::kTensor) continue;
        EXPECT_THAT(plan.tile_samples, ::testing::AnyOf(32, 64, 128, 256));
        EXPECT_THAT(plan.tile_features, ::testing::AnyOf(64, 128));
        const int most = plan.x_parts * plan.weight_parts > 1 ? 128 : 256;
        EXPECT_LE(plan.tile_samples, most);
        if (plan.tile_features == 64) continue;
        EXPECT_EQ(plan.cluster, 2);
        EXPECT_EQ(plan.tile_samples, most);
      }
    }
  }
}

TEST(LinearPlanTest, GivesEachMultiprocessorFewFeaturesWhereSamplesAreFew) {
  const auto plan = [](std::int64_t samples, Precision precision, std::int64_t out = 8192) {
    return MakeLinearPlan(Spec(8192, out, DType::kFloat32, precision), Device(90, 132), samples);
  };
  for (Precision precision : {Precision::kFloat32, Precision::kTf32}) {
    for (const auto& [samples, columns] : {std::pair{1, 32}, {32, 32}, {33, 64}, {65, 128}}) {
      EXPECT_EQ(plan(samples, precision).tile_features, 64) << samples;
      EXPECT_EQ(plan(samples, precision).tile_samples, columns) << samples;
    }
    EXPECT_EQ(plan(1024, precision).tile_features, 128);
  }
  EXPECT_EQ(plan(200, Precision::kFloat32).tile_features, 128);
  EXPECT_EQ(plan(200, Precision::kTf32).tile_samples, 256);
  // Few features: as many tiles as multiprocessors can take at once.
  EXPECT_EQ(plan(1024, Precision::kFloat32, 512).tile_features, 64);
  EXPECT_EQ(plan(1024, Precision::kFloat32, 512).tile_samples, 64);
  // More features than multiprocessors: still no columns that no sample fills.
  EXPECT_EQ(plan(1, Precision::kTf32, 1 << 20).tile_samples, 32);
}

// Padding is what the kernels read behind the last feature, element and sample.
TEST(LinearPlanTest, LaysOutWholeTilesWithoutOverlap) {
  for (int capability : {80, 90}) {
    const DeviceLimits limits = Device(capability, 132);
    for (const LinearNormSpec& spec : Specs()) {
      const WeightLayout weights = MakeWeightLayout(spec, limits);
      EXPECT_GE(weights.rows, spec.out_features);
      EXPECT_EQ(weights.rows % kMaxFeaturesPerCluster, 0);
      EXPECT_GE(weights.k, spec.in_features);
      EXPECT_EQ(weights.k % kStepElements, 0);
      EXPECT_GE(weights.exponents, weights.bias + static_cast<std::size_t>(weights.rows) * 4);
      EXPECT_GE(weights.weight, weights.exponents + static_cast<std::size_t>(weights.rows) * 4);
      for (std::int64_t samples : Samples()) {
        const LinearPlan plan = MakeLinearPlan(spec, limits, samples);
        const WorkspaceLayout layout = MakeWorkspaceLayout(spec, plan, samples);
        EXPECT_GE(layout.rows, samples);
        EXPECT_EQ(layout.rows % plan.tile_samples, 0);
        EXPECT_GE(layout.z_pitch, spec.out_features);
        const std::size_t element = plan.path == LinearPath::kTensor ? 2 : 4;
        const auto x_bytes =
            static_cast<std::size_t>(layout.rows * weights.k * plan.x_parts) * element;
        EXPECT_GE(layout.x, layout.exponents + static_cast<std::size_t>(layout.rows) * 4);
        EXPECT_GE(layout.z, layout.x + x_bytes);
        EXPECT_GE(layout.bytes, layout.z + static_cast<std::size_t>(samples * layout.z_pitch) * 4);
        for (std::size_t part : {layout.exponents, layout.x, layout.z}) EXPECT_EQ(part % 256, 0U);
      }
    }
  }
}

// Prepared weights serve requests of every type.
TEST(LinearPlanTest, LaysOutWeightsAlikeForEveryType) {
  for (const int capability : {90, 120}) {
    const DeviceLimits device = Device(capability, 132);
    for (const LinearNormSpec& spec : Specs()) {
      LinearNormSpec other = spec;
      other.dtype = DType::kFloat32;
      const WeightLayout a = MakeWeightLayout(spec, device);
      const WeightLayout b = MakeWeightLayout(other, device);
      EXPECT_EQ(a.bytes, b.bytes);
      EXPECT_EQ(a.weight, b.weight);
      EXPECT_EQ(a.k, b.k);
      const LinearPlan plan = MakeLinearPlan(spec, device, 1);
      const LinearPlan other_plan = MakeLinearPlan(other, device, 1);
      EXPECT_EQ(plan.path, other_plan.path);
      EXPECT_EQ(plan.format, other_plan.format);
      EXPECT_EQ(plan.weight_parts, other_plan.weight_parts);
    }
  }
}

TEST(LinearPlanTest, NeedsNoLessWorkspaceForMoreSamples) {
  for (int capability : {80, 90}) {
    const DeviceLimits limits = Device(capability, 132);
    for (const LinearNormSpec& spec : Specs()) {
      std::size_t before = 0;
      for (std::int64_t samples = 1; samples <= kLinearChunkSamples; ++samples) {
        const LinearPlan plan = MakeLinearPlan(spec, limits, samples);
        const std::size_t bytes = MakeWorkspaceLayout(spec, plan, samples).bytes;
        ASSERT_GE(bytes, before) << samples;
        before = bytes;
      }
    }
  }
}

TEST(LinearPlanTest, ParsesTilesAndListsThem) {
  for (LinearTile tile : kLinearTiles) {
    LinearTile parsed = LinearTile::kAuto;
    EXPECT_TRUE(ParseLinearTile(Name(tile), &parsed).ok()) << Name(tile);
    EXPECT_EQ(parsed, tile);
  }
  LinearTile tile = LinearTile::kAuto;
  EXPECT_THAT(ParseLinearTile("broad", &tile).message(),
              HasSubstr("auto, narrow32, narrow64, narrow128, narrow256, wide"));
}

TEST(LinearPlanTest, DescribesWhatItChose) {
  const LinearNormSpec spec = Spec(8192, 8192, DType::kFloat32, Precision::kFloat32);
  EXPECT_THAT(Describe(MakeLinearPlan(spec, Device(90, 132), 1024)),
              HasSubstr("float16 2 x 2 parts, 128 features x 128 samples, clusters of 2"));
  EXPECT_THAT(Describe(MakeLinearPlan(spec, Device(80, 108), 1)), HasSubstr("plain: float32"));
}

}  // namespace
}  // namespace normd::norm::cuda

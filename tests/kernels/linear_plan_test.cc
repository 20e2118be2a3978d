// How the fused layer is computed, on devices that need not be there.

#include "kernels/cuda/linear/linear_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace normd::norm::cuda {
namespace {

using ::testing::HasSubstr;

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

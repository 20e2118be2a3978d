// What becomes of segments with stages, and how their rows lie, on devices that need not be there.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/stages/position_slabs_plan.h"
#include "kernels/cuda/stages/stage_plan.h"

namespace normd::norm::cuda {
namespace {

NormSpec PositionNorm(std::int64_t channels, Layout layout) {
  NormSpec spec = LayerNormSpec(channels, DType::kFloat16);
  spec.layout = layout;
  spec.rows = Rows::kPosition;
  return spec;
}

DeviceLimits LimitsOfHopper() {
  DeviceLimits limits;
  limits.compute_capability = 90;
  for (const int blocks : {2, 4, 8, 16}) limits.resident_clusters[blocks] = 128 / blocks;
  return limits;
}

TEST(LowerSegmentTest, LeavesWhatTheSpecialisedKernelsKnowToThem) {
  EXPECT_EQ(LowerSegment(InstanceNormSpec(64, DType::kFloat32), 49, {}), Lowering::kPlain);
  EXPECT_EQ(LowerSegment(BatchNormSpec(64, DType::kFloat32), 49, {}), Lowering::kPlain);
  EXPECT_EQ(LowerSegment(InstanceNormSpec(64, DType::kFloat32), 49, {.input_bias = true}),
            Lowering::kStages);
}

TEST(LowerSegmentTest, MakesPositionsSamplesWhereRowsLieTogether) {
  const NormSpec last = PositionNorm(96, Layout::kChannelsLast);
  ASSERT_EQ(LowerSegment(last, 49, {}), Lowering::kPositions);
  const LoweredRows rows = LowerRows(last, Lowering::kPositions, 3, 49);
  EXPECT_EQ(rows.spec.rows, Rows::kGroup);
  EXPECT_EQ(rows.samples, 3 * 49);
  EXPECT_EQ(rows.spatial, 1);
  EXPECT_EQ(LowerSegment(PositionNorm(96, Layout::kChannelsFirst), 49, {}), Lowering::kStages);
}

TEST(LowerSegmentTest, MakesModulationFactorsWhereTheyTakeFewBytes) {
  NormSpec spec = GroupNormSpec(64, 8, DType::kFloat32);
  spec.scale = true;
  ASSERT_EQ(LowerSegment(spec, 32, {}), Lowering::kSampleAffine);
  EXPECT_EQ(LowerSegment(spec, 31, {}), Lowering::kStages);
  const LoweredRows rows = LowerRows(spec, Lowering::kSampleAffine, 5, 32);
  EXPECT_FALSE(rows.spec.scale);
  EXPECT_EQ(rows.spec.channels, 5 * 64);
  EXPECT_EQ(rows.spec.groups, 5 * 8);
  EXPECT_EQ(rows.samples, 1);
  spec.layout = Layout::kChannelsLast;
  EXPECT_EQ(LowerSegment(spec, 32, {}), Lowering::kStages);
}

TEST(LowerSegmentTest, TakesScaleAndShiftAsGammaAndBetaOfRowsInABlock) {
  NormSpec spec = PositionNorm(3072, Layout::kChannelsLast);
  spec.dtype = DType::kBFloat16;
  spec.scale = true;
  for (const bool shift : {false, true}) {
    spec.shift = shift;
    EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kModulated);
    EXPECT_EQ(LowerSegment(spec, 4096, {}), Lowering::kModulated);
  }
  EXPECT_EQ(LowerSegment(spec, 4096, {.affine = true}), Lowering::kStages);
  EXPECT_EQ(LowerSegment(spec, 4096, {.input_bias = true}), Lowering::kStages);
  for (const std::int64_t channels : {1032, 1040, 32760, 32768}) {
    spec.channels = channels;
    EXPECT_EQ(LowerSegment(spec, 49, {}), Lowering::kModulated) << channels;
  }
  for (const std::int64_t channels : {1024, 1028, 3073, 32776}) {
    spec.channels = channels;
    EXPECT_EQ(LowerSegment(spec, 49, {}), Lowering::kStages) << channels;
  }
  spec.channels = 3072;
  spec.groups = 2;
  EXPECT_EQ(LowerSegment(spec, 49, {}), Lowering::kModulated);
  const LoweredRows rows = LowerRows(spec, Lowering::kModulated, 3, 49);
  EXPECT_EQ(rows.samples, 3);
  EXPECT_EQ(rows.spatial, 49);
  Plan plan;
  EXPECT_TRUE(MakePlan(spec, 49, LimitsOfHopper(), Strategy::kAuto, &plan).ok());
  EXPECT_EQ(plan.strategy, Strategy::kBlock);
  EXPECT_FALSE(MakePlan(spec, 49, LimitsOfHopper(), Strategy::kGrid, &plan).ok());
  spec.layout = Layout::kChannelsFirst;
  EXPECT_EQ(LowerSegment(spec, 49, {}), Lowering::kStages);
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kModulated);
  spec.activation = Activation::kSilu;
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
}

TEST(LowerSegmentTest, TakesAWeightOffsetWithGammaOfTheRowsTypeInABlock) {
  NormSpec spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.weight_offset = 1;
  const float element = 0;
  const auto lowering = [&](DType gamma, DType beta, bool has_beta) {
    NormParams params;
    params.gamma = {&element, gamma};
    if (has_beta) params.beta = {&element, beta};
    return LowerSegment(spec, 1, PresentParams::Of(params, spec.dtype));
  };
  const DType own = spec.dtype;
  EXPECT_EQ(lowering(own, own, false), Lowering::kModulated);
  EXPECT_EQ(lowering(own, own, true), Lowering::kModulated);
  EXPECT_EQ(lowering(DType::kFloat32, own, false), Lowering::kStages);
  EXPECT_EQ(lowering(own, DType::kFloat32, true), Lowering::kStages);
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
  spec.scale = true;
  EXPECT_EQ(lowering(own, own, false), Lowering::kStages);
  spec.scale = false;
  spec.channels = 1024;
  EXPECT_EQ(lowering(own, own, false), Lowering::kStages);
}

TEST(LowerSegmentTest, ComputesEveryOtherStageByItself) {
  NormSpec spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.residual = true;
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
  spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.quantization = Quantization::kInt8;
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
  spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.weight_offset = 1;
  EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
}

constexpr Statistics kNorms[] = {Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares,
                                 Statistics::kLargestAbsolute};

TEST(LowerSegmentTest, LeavesNormsOfRowsTooLongForABlockToTheSpecialisedKernels) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const std::int64_t most = (64 << 10) / static_cast<std::int64_t>(SizeOf(dtype));
    for (const Statistics statistics : kNorms) {
      NormSpec spec = RmsNormSpec(most, dtype);
      spec.statistics = statistics;
      EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
      spec.channels = most + 1;
      EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kPlain);
      EXPECT_EQ(LowerSegment(spec, 1, {.affine = true}), Lowering::kStages);
      EXPECT_EQ(LowerSegment(spec, 1, {.input_bias = true}), Lowering::kStages);
      spec.activation = Activation::kSilu;
      EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
      spec.activation = Activation::kNone;
      spec.residual = true;
      EXPECT_EQ(LowerSegment(spec, 1, {}), Lowering::kStages);
    }
  }
}

TEST(LowerSegmentTest, LeavesNormsToTheSpecialisedKernelsOnlyWhereRowsLieTogether) {
  for (const Statistics statistics : kNorms) {
    NormSpec spec = GroupNormSpec(64, 8, DType::kFloat32);
    spec.statistics = statistics;
    EXPECT_EQ(LowerSegment(spec, 2048, {}), Lowering::kStages);  // 64 KiB
    EXPECT_EQ(LowerSegment(spec, 2049, {}), Lowering::kPlain);
    spec.scale = true;
    EXPECT_EQ(LowerSegment(spec, 2049, {}), Lowering::kStages);
    spec.scale = false;
    spec.layout = Layout::kChannelsLast;
    EXPECT_EQ(LowerSegment(spec, 2049, {}), Lowering::kStages);

    NormSpec positions = PositionNorm(32769, Layout::kChannelsLast);
    positions.statistics = statistics;
    EXPECT_EQ(LowerSegment(positions, 49, {}), Lowering::kPositions);
    positions.channels = 32768;
    EXPECT_EQ(LowerSegment(positions, 49, {}), Lowering::kStages);
    positions = PositionNorm(32769, Layout::kChannelsFirst);
    positions.statistics = statistics;
    EXPECT_EQ(LowerSegment(positions, 49, {}), Lowering::kStages);
    EXPECT_EQ(LowerSegment(positions, 1, {}), Lowering::kPositions);
  }
}

TEST(RowsOfStagesTest, CountsEveryElementOnce) {
  for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
    for (const Rows rows : {Rows::kGroup, Rows::kPosition}) {
      for (const Statistics statistics : {Statistics::kMeanVariance, Statistics::kGiven}) {
        for (const std::int64_t spatial : {1, 7, 4096}) {
          NormSpec spec = GroupNormSpec(24, 4, DType::kFloat32);
          spec.layout = layout;
          spec.rows = rows;
          spec.statistics = statistics;
          const StageRows of = RowsOfStages(spec, spatial);
          EXPECT_EQ(of.elements * of.rows_of_sample(), 24 * spatial);
        }
      }
    }
  }
}

NormSpec MixedRunsNorm(std::int64_t channels, DType dtype) {
  NormSpec spec = LayerNormSpec(channels, dtype);
  spec.layout = Layout::kMixedRuns;
  spec.rows = Rows::kPosition;
  spec.channel_runs = {channels, 1, 1, 1};
  return spec;
}

TEST(RowsOfStagesTest, GivesRowsOfMixedRunsAPlaceOfTheirOwn) {
  const NormSpec spec = MixedRunsNorm(24, DType::kFloat16);
  EXPECT_EQ(LowerSegment(spec, 49, {}), Lowering::kStages);
  const StageRows rows = RowsOfStages(spec, 49);
  EXPECT_EQ(rows.places, RowPlaces::kMixedRuns);
  EXPECT_EQ(rows.elements, 24);
  EXPECT_EQ(rows.rows_of_sample(), 49);
}

// So that a warp's rows, neighbours in memory, read whole sectors; long rows take more lanes, and
// at last warps.
TEST(PlanStagesTest, GivesRowsOfMixedRunsAsFewLanesAsFillASector) {
  struct Wanted {
    DType dtype;
    std::int64_t channels;
    int lanes;
  };
  for (const Wanted& wanted :
       {Wanted{DType::kFloat32, 4, 1}, Wanted{DType::kFloat32, 9, 4},
        Wanted{DType::kFloat32, 1024, 4}, Wanted{DType::kFloat32, 2049, 8},
        Wanted{DType::kFloat16, 1024, 2}, Wanted{DType::kFloat64, 512, 8},
        Wanted{DType::kFloat32, 16384, 32}, Wanted{DType::kFloat32, 16385, 0},
        Wanted{DType::kFloat32, 1 << 20, 0}}) {
    const NormSpec spec = MixedRunsNorm(wanted.channels, wanted.dtype);
    Plan plan;
    PlanStages(spec, 49, DeviceLimits(), &plan);
    EXPECT_EQ(plan.places, RowPlaces::kMixedRuns);
    EXPECT_EQ(plan.lanes_per_row, wanted.lanes) << wanted.channels;
    EXPECT_EQ(plan.warps > 0, wanted.lanes == 0) << wanted.channels;
  }
}

TEST(PlanStagesTest, CutsARowByItsLengthAlone) {
  NormSpec spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.residual = true;
  Plan plan;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.strategy, Strategy::kStages);
  EXPECT_EQ(plan.warps, 4);
  spec.channels = 1024;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.warps, 0);
  EXPECT_EQ(plan.lanes_per_row, 32);
  spec.channels = 33;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.lanes_per_row, 8);
  spec.channels = 1 << 20;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.warps, kStageWarps);
  EXPECT_EQ(plan.blocks_per_row, 0);
}

TEST(PlanStagesTest, GivesALaneMoreOfALongRowWithOneInput) {
  NormSpec spec = LayerNormSpec(4096, DType::kBFloat16);
  spec.scale = true;
  Plan plan;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.warps, 2);
  EXPECT_EQ(plan.vectors, kManyVectors);
  spec.channels = 2048;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.warps, 0);
  EXPECT_EQ(plan.lanes_per_row, 32);
  EXPECT_EQ(plan.vectors, kManyVectors);
  PlanStages(spec, 1, {.input_bias = true}, DeviceLimits(), &plan);
  EXPECT_EQ(plan.vectors, kFewVectors);
  NormSpec quantized = spec;
  quantized.quantization = Quantization::kInt8;
  PlanStages(quantized, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.vectors, kFewVectors);
  spec.channels = 1024;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.vectors, kFewVectors);
  spec.channels = 32768;
  PlanStages(spec, 1, DeviceLimits(), &plan);
  EXPECT_EQ(plan.warps, 16);
}

TEST(PlanStagesTest, CutsGroupsOfFewPositionsIntoSlabs) {
  DeviceLimits limits = LimitsOfHopper();
  limits.shared_bytes_per_block = 227 << 10;
  NormSpec spec = PositionNorm(768, Layout::kChannelsFirst);
  const auto slabs = [&](std::int64_t channels, std::int64_t spatial) {
    spec.channels = channels;
    Plan plan;
    PlanStages(spec, spatial, limits, &plan);
    return plan.slabs;
  };
  EXPECT_EQ(slabs(768, 49), 4);
  EXPECT_EQ(slabs(768, 48), 0);  // Four positions fill a word of a tile.
  EXPECT_EQ(slabs(768, 127), 8);
  EXPECT_EQ(slabs(768, 129), 0);  // Tiles are faster.
  EXPECT_EQ(slabs(40, 49), 0);    // Too few bytes.
  EXPECT_EQ(slabs(2048, 64), 8);  // More channels than a tile has.
  EXPECT_EQ(slabs(1025, 1), 0);   // No neighbours: a row is contiguous.
  EXPECT_EQ(slabs(8192, 64), 0);  // Blocks do not hold it.
  spec.groups = 2;
  EXPECT_EQ(slabs(768, 49), 2);
  spec.groups = 1;
  spec.dtype = DType::kFloat32;
  EXPECT_EQ(slabs(768, 49), 8);
  EXPECT_EQ(slabs(768, 65), 0);
  spec.activation = Activation::kRelu;
  EXPECT_EQ(slabs(768, 49), 0);
  spec.activation = Activation::kNone;
  Plan plan;
  PlanStages(spec, 49, {.input_bias = true}, limits, &plan);
  EXPECT_EQ(plan.slabs, 0);
  limits.shared_bytes_per_block = 16 << 10;
  EXPECT_EQ(slabs(768, 49), 0);
  limits = DeviceLimits();
  EXPECT_EQ(slabs(768, 49), 0);
}

TEST(SlabShapeTest, SlabsHoldAllChannelsAndBeginAtVectors) {
  for (const int element : {2, 4}) {
    for (const int spatial : {2, 3, 7, 49, 64, 127, 300}) {
      for (int channels = 1; channels < 300; ++channels) {
        for (const int slabs : {1, 2, 4, 8}) {
          const SlabShape shape = SlabShape::Of(channels, spatial, element, slabs);
          EXPECT_GE(shape.channels * slabs, channels);
          EXPECT_EQ(shape.channels * spatial * element % 16, 0);
          EXPECT_GE(shape.bytes, shape.channels * spatial * element);
          EXPECT_GE(shape.splits, 1);
          EXPECT_LE(shape.splits * std::min(spatial, kSlabThreads), kSlabThreads);
        }
      }
    }
  }
}

TEST(PlanStagesTest, CutsLongRowsOverTheBlocksOfACluster) {
  NormSpec spec = RmsNormSpec(32768, DType::kBFloat16);  // 64 KiB
  spec.residual = true;
  const auto blocks = [&](std::int64_t elements, const DeviceLimits& limits) {
    spec.channels = elements;
    Plan plan;
    PlanStages(spec, 1, limits, &plan);
    return plan.blocks_per_row;
  };
  EXPECT_EQ(blocks(32768, LimitsOfHopper()), 1);
  EXPECT_EQ(blocks(32769, LimitsOfHopper()), 4);
  EXPECT_EQ(blocks(65536, LimitsOfHopper()), 4);
  EXPECT_EQ(blocks(65537, LimitsOfHopper()), 8);
  EXPECT_EQ(blocks(262144, LimitsOfHopper()), 8);
  EXPECT_EQ(blocks(262145, LimitsOfHopper()), 16);
  EXPECT_EQ(blocks(1 << 30, LimitsOfHopper()), 16);
  DeviceLimits small = LimitsOfHopper();
  small.resident_clusters[16] = 0;
  EXPECT_EQ(blocks(1 << 30, small), 8);
  EXPECT_EQ(blocks(32768, DeviceLimits()), 1);
  EXPECT_EQ(blocks(32769, DeviceLimits()), 0);
  spec.dtype = DType::kFloat64;
  EXPECT_EQ(blocks(32769, LimitsOfHopper()), 0);
}

TEST(MakePlanTest, RefusesAForcedStrategyForStages) {
  NormSpec spec = RmsNormSpec(4096, DType::kBFloat16);
  spec.residual = true;
  Plan plan;
  EXPECT_TRUE(MakePlan(spec, 1, DeviceLimits(), Strategy::kAuto, &plan).ok());
  EXPECT_EQ(Describe(plan), "stages: 4 warps x 4 vectors");
  EXPECT_EQ(MakePlan(spec, 1, DeviceLimits(), Strategy::kBlock, &plan).code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace normd::norm::cuda

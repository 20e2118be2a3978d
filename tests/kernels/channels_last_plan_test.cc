#include "kernels/cuda/channels_last/strip_plan.h"

#include <gtest/gtest.h>

namespace normd::norm::cuda {
namespace {

DeviceLimits HopperOfEightClusters() {
  DeviceLimits limits;
  limits.compute_capability = 90;
  limits.multiprocessors = 132;
  limits.shared_bytes_per_block = 227 << 10;
  limits.resident_clusters.fill(8);
  limits.cooperative_launch = true;
  return limits;
}

NormSpec ChannelsLast(std::int64_t channels, std::int64_t groups, DType dtype) {
  NormSpec spec = GroupNormSpec(channels, groups, dtype);
  spec.layout = Layout::kChannelsLast;
  return spec;
}

Strategy StripsOf(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits) {
  Plan plan;
  EXPECT_TRUE(PlanChannelsLast(spec, spatial, limits, Strategy::kAuto, &plan));
  EXPECT_EQ(plan.strategy, Strategy::kChannelsLast);
  return plan.strips;
}

TEST(ChannelsLastPlanTest, BlocksOfAStripHoldAllItsPositions) {
  const DeviceLimits limits = HopperOfEightClusters();
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t group_channels : {1, 2, 3, 8, 10, 16, 64}) {
      for (const std::int64_t groups : {1, 6, 32}) {
        for (const std::int64_t spatial : {2, 49, 1024, 4096, 4097, 16384, 100000}) {
          const NormSpec spec = ChannelsLast(groups * group_channels, groups, dtype);
          for (const bool grid : {false, true}) {
            StripPlan plan;
            if (!(grid ? PlanGridStrips : PlanClusterStrips)(spec, spatial, limits, &plan))
              continue;
            const std::int64_t steps = static_cast<std::int64_t>(plan.rows) * plan.vectors;
            EXPECT_GE(steps * plan.blocks, spatial);
            EXPECT_EQ(spec.groups % plan.groups, 0);
            EXPECT_GE(plan.threads, plan.rows * plan.columns);
            EXPECT_LE(plan.shared_bytes, limits.shared_bytes_per_block / 2);
            EXPECT_GE(static_cast<std::int64_t>(plan.columns) * 16,
                      plan.groups * group_channels * static_cast<std::int64_t>(SizeOf(dtype)));
          }
        }
      }
    }
  }
}

TEST(ChannelsLastPlanTest, SmallStripsFormClustersLargeOnesShareGlobalMemoryTheLargestAreSplit) {
  const DeviceLimits limits = HopperOfEightClusters();
  const NormSpec spec = ChannelsLast(512, 32, DType::kFloat16);
  EXPECT_EQ(StripsOf(spec, 4096, limits), Strategy::kCluster);
  EXPECT_EQ(StripsOf(spec, 128 * 128, limits), Strategy::kGrid);
  EXPECT_EQ(StripsOf(spec, 1024 * 1024, limits), Strategy::kSplit);
}

TEST(ChannelsLastPlanTest, WithoutClustersAndCooperativeLaunchWhatABlockCannotHoldIsSplit) {
  DeviceLimits limits = HopperOfEightClusters();
  limits.resident_clusters.fill(0);
  limits.cooperative_launch = false;
  const NormSpec spec = ChannelsLast(64, 8, DType::kFloat32);
  EXPECT_EQ(StripsOf(spec, 49, limits), Strategy::kCluster);  // One block.
  EXPECT_EQ(StripsOf(spec, 128 * 128, limits), Strategy::kSplit);
}

TEST(ChannelsLastPlanTest, AForcedPlaceThatHoldsNoStripIsRefused) {
  Plan plan;
  EXPECT_FALSE(PlanChannelsLast(ChannelsLast(512, 32, DType::kFloat16), 1024 * 1024,
                                HopperOfEightClusters(), Strategy::kCluster, &plan));
  EXPECT_FALSE(PlanChannelsLast(ChannelsLast(512, 32, DType::kFloat16), 64, HopperOfEightClusters(),
                                Strategy::kWarp, &plan));
}

}  // namespace
}  // namespace normd::norm::cuda

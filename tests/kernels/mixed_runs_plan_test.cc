// How rows of mixed runs are cut into tiles, on devices that need not be there.

#include "kernels/cuda/stages/mixed_runs_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm::cuda {
namespace {

DeviceLimits Limits(int compute_capability, std::size_t shared_bytes) {
  DeviceLimits limits;
  limits.compute_capability = compute_capability;
  limits.shared_bytes_per_block = shared_bytes;
  return limits;
}
const DeviceLimits kHopper = Limits(90, 227 << 10);
const DeviceLimits kTuring = Limits(75, 64 << 10);

NormSpec MixedRunsSpec(const RunSizes& channels, DType dtype) {
  NormSpec spec = LayerNormSpec(channels[0] * channels[1] * channels[2] * channels[3], dtype);
  spec.layout = Layout::kMixedRuns;
  spec.rows = Rows::kPosition;
  spec.channel_runs = channels;
  return spec;
}

TEST(PlanMixedRunsTest, TakesARowThatFillsATileAlone) {
  const MixedRunsPlan plan =
      PlanMixedRuns(MixedRunsSpec({1, 1, 64, 128}, DType::kFloat32), {1, 1, 128, 1}, kHopper);
  EXPECT_EQ(plan.run, 128);
  EXPECT_EQ(plan.rows(), 1);
  EXPECT_EQ(plan.lines, 64);
  EXPECT_EQ(plan.chunks, 1);
  EXPECT_EQ(plan.threads, 512);
  EXPECT_EQ(plan.lanes * plan.parts, 512);
}

TEST(PlanMixedRunsTest, TakesNeighboursThatFillLinesOfMemory) {
  const MixedRunsPlan wide =
      PlanMixedRuns(MixedRunsSpec({1, 1, 32, 16}, DType::kFloat32), {1, 1, 8, 128}, kHopper);
  EXPECT_EQ(wide.run, 1);
  EXPECT_EQ(wide.positions, 16);
  EXPECT_EQ(wide.lines, 512);
  EXPECT_EQ(wide.chunks, 1);
  EXPECT_EQ(wide.lanes, 32);
  const MixedRunsPlan narrow =
      PlanMixedRuns(MixedRunsSpec({1, 1, 32, 16}, DType::kBFloat16), {1, 1, 8, 128}, kHopper);
  EXPECT_EQ(narrow.positions, 32);
  EXPECT_EQ(narrow.lanes, 16);
}

TEST(PlanMixedRunsTest, TakesWholeRunsOfShortRows) {
  const MixedRunsPlan plan =
      PlanMixedRuns(MixedRunsSpec({1, 1, 4, 4}, DType::kFloat32), {1, 1, 12, 1}, kHopper);
  EXPECT_EQ(plan.positions, 12);
  EXPECT_EQ(plan.runs, 5);
}

// What the kernel relies on, for any shape.
void CheckPlan(const NormSpec& spec, const RunSizes& positions, const DeviceLimits& limits) {
  SCOPED_TRACE(::testing::Message()
               << ::testing::PrintToString(spec.channel_runs) << " "
               << ::testing::PrintToString(positions) << " " << Name(spec.dtype));
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const MixedRunsPlan plan = PlanMixedRuns(spec, positions, limits);
  const std::int64_t room = limits.compute_capability < 80 ? 44 << 10 : 100 << 10;
  EXPECT_LE(plan.shared_bytes, static_cast<std::size_t>(room));
  EXPECT_LE(plan.rows(), kMostTileRows);
  EXPECT_LE(plan.rows(), plan.threads);
  EXPECT_LE(plan.threads, kMostTileThreads);
  EXPECT_TRUE(plan.runs == 1 || plan.positions == plan.run_positions);
  EXPECT_LE(plan.positions, plan.run_positions);
  EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.lanes)));
  EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(plan.parts)));
  EXPECT_TRUE(plan.parts == 1 || plan.lanes == 32);
  EXPECT_LE(plan.parts * plan.rows(), kMostTileRows);
  EXPECT_LE(plan.lanes * plan.parts * plan.rows(), plan.threads);
  EXPECT_EQ(plan.row_stride % 16, 0);
  EXPECT_GE(plan.row_stride, plan.lines * plan.elements * element);
  const std::int64_t lines = spec.channels / plan.run;
  if (plan.elements == plan.run) {
    EXPECT_EQ(plan.chunks, (lines + plan.lines - 1) / plan.lines);
  } else {
    EXPECT_EQ(plan.lines, 1);
    EXPECT_EQ(plan.rows(), 1);
    EXPECT_EQ(plan.elements * element % 16, 0);
    EXPECT_EQ(plan.chunks, lines * ((plan.run + plan.elements - 1) / plan.elements));
  }
}

TEST(PlanMixedRunsTest, KeepsItsPromisesForAnyShape) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const std::int64_t run : {1, 2, 3, 7, 8, 31, 128, 225, 4096, 12800, 12801, 100000}) {
      for (const std::int64_t lines : {2, 3, 24, 100, 1000, 5000, 40000}) {
        if (run * lines > 10000000) continue;
        for (const std::int64_t positions : {2, 3, 7, 8, 16, 50, 64, 65, 1000}) {
          for (const DeviceLimits& limits : {kHopper, kTuring}) {
            if (run == 1) {
              CheckPlan(MixedRunsSpec({1, 1, lines, 1}, dtype), {1, 1, 2, positions}, limits);
            } else {
              CheckPlan(MixedRunsSpec({1, 1, lines, run}, dtype), {1, 1, positions, 1}, limits);
            }
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(TilesMixedRunsTest, LeavesOtherStagesToTheGeneralKernel) {
  NormSpec spec = MixedRunsSpec({1, 1, 64, 128}, DType::kFloat32);
  EXPECT_TRUE(TilesMixedRuns(spec, 128));
  spec.residual = spec.scale = spec.shift = true;
  spec.activation = Activation::kSilu;
  EXPECT_TRUE(TilesMixedRuns(spec, 128));
  EXPECT_FALSE(TilesMixedRuns(spec, std::int64_t{1} << 31));
  spec.gate = true;
  EXPECT_FALSE(TilesMixedRuns(spec, 128));
  spec.gate = false;
  spec.statistics = Statistics::kLargestAbsolute;
  EXPECT_FALSE(TilesMixedRuns(spec, 128));
  spec = MixedRunsSpec({1, 1, 64, 128}, DType::kFloat64);
  EXPECT_FALSE(TilesMixedRuns(spec, 128));
}

}  // namespace
}  // namespace normd::norm::cuda

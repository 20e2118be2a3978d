#include "kernels/cuda/channels_last/strip_plan.h"

#include <algorithm>

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr int kLanes = 32;
// Shared memory of each block that the system and a kernel's static variables take.
constexpr std::int64_t kSystemBytes = (1 << 10) + 64;

// The bytes of a strip at one position. Copies of 128-byte runs reach 0.92 of a plain copy's speed,
// of 256 bytes 0.96, of 64 bytes 0.82, of 32 bytes 0.65.
constexpr std::int64_t kClusterRunBytes = 128;
constexpr std::int64_t kGridRunBytes = 256;
constexpr std::int64_t kMinGridRunBytes = 64;

constexpr std::int64_t kClusterThreads = 256;
// Three blocks share a multiprocessor of Hopper: while one waits for its cluster, two move data.
constexpr std::int64_t kClusterBlocksPerMultiprocessor = 3;
constexpr std::int64_t kWantedStripBytes = 16 << 10;  // Enough work for a block.
constexpr std::int64_t kWantedSlabBytes = 40 << 10;   // A larger strip is spread over more blocks.

constexpr std::int64_t kGridThreads = 512;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t GroupBytes(const NormSpec& spec) {
  return spec.channels / spec.groups * static_cast<std::int64_t>(SizeOf(spec.dtype));
}

// Shared memory for the statistics: a partial for each thread and for each block of the strip, the
// rows' scales, and the strip's parameters.
std::int64_t StatisticsBytes(const NormSpec& spec, const StripPlan& plan) {
  const std::int64_t scalar = spec.dtype == DType::kFloat64 ? 8 : 4;
  const std::int64_t group_channels = spec.channels / spec.groups;
  const auto per_vector = kVectorBytes / static_cast<std::int64_t>(SizeOf(spec.dtype));
  return (static_cast<std::int64_t>(plan.rows) * plan.columns *
              PartsOfColumn(group_channels, per_vector) +
          static_cast<std::int64_t>(plan.groups) * plan.blocks) *
             4 * scalar +
         plan.groups * (3 + 2 * group_channels) * scalar;
}

// The threads of a block over strips of `groups` groups. False if the strips are too wide.
bool PlanThreads(const NormSpec& spec, std::int64_t spatial, std::int64_t groups,
                 std::int64_t max_threads, StripPlan* plan) {
  const std::int64_t columns = CeilDiv(groups * GroupBytes(spec), kVectorBytes);
  if (columns > max_threads) return false;
  plan->groups = static_cast<int>(groups);
  plan->columns = static_cast<int>(columns);
  plan->rows = static_cast<int>(std::min(max_threads / columns, spatial));
  plan->threads = static_cast<int>(CeilDiv(plan->rows * columns, kLanes) * kLanes);
  return true;
}

// Divides a strip's positions among `blocks` blocks. False if a block's share exceeds `max_bytes`
// of shared memory.
bool PlanBlocks(const NormSpec& spec, std::int64_t spatial, std::int64_t blocks, int held,
                std::int64_t max_bytes, StripPlan* plan) {
  plan->blocks = static_cast<int>(blocks);
  plan->held = held;
  const std::int64_t steps = CeilDiv(CeilDiv(spatial, blocks), plan->rows);
  const std::int64_t vectors = std::max<std::int64_t>(steps, held);
  const std::int64_t bytes =
      (vectors - held) * plan->threads * kVectorBytes + StatisticsBytes(spec, *plan);
  if (bytes > max_bytes) return false;
  plan->vectors = static_cast<int>(vectors);
  plan->shared_bytes = static_cast<std::size_t>(bytes);
  return true;
}

bool HoldsClusters(const DeviceLimits& limits, std::int64_t blocks) {
  return blocks == 1 || (blocks <= kMaxClusterBlocks &&
                         limits.resident_clusters[static_cast<std::size_t>(blocks)] > 0);
}

// Strips of `groups` groups in as few blocks of a cluster as hold them, or more if they are large.
bool PlanClusterWidth(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                      std::int64_t groups, StripPlan* out) {
  StripPlan plan;
  if (!PlanThreads(spec, spatial, groups, kClusterThreads, &plan)) return false;
  const std::int64_t max_bytes =
      static_cast<std::int64_t>(limits.shared_bytes_per_block) / kClusterBlocksPerMultiprocessor -
      kSystemBytes;
  const std::int64_t strip_bytes = spatial * plan.columns * kVectorBytes;
  for (std::int64_t blocks = 1; HoldsClusters(limits, blocks); blocks *= 2) {
    const bool spread =
        strip_bytes <= blocks * kWantedSlabBytes || !HoldsClusters(limits, 2 * blocks);
    if (!spread || !PlanBlocks(spec, spatial, blocks, 0, max_bytes, &plan)) continue;
    *out = plan;
    return true;
  }
  return false;
}

// Whether strips of this many groups begin inside vectors.
bool CutsVectors(const NormSpec& spec, std::int64_t groups) {
  return groups != spec.groups && groups * GroupBytes(spec) % kVectorBytes != 0;
}

}  // namespace

bool PlanClusterStrips(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                       StripPlan* plan) {
  bool found = false;
  std::int64_t run_bytes = 0;
  // The narrowest strip that is wide enough; failing that, the widest there is.
  for (std::int64_t groups = 1; groups <= spec.groups; ++groups) {
    if (spec.groups % groups != 0 || CutsVectors(spec, groups)) continue;
    if (!PlanClusterWidth(spec, spatial, limits, groups, plan)) break;
    found = true;
    run_bytes = groups * GroupBytes(spec);
    if (run_bytes >= kClusterRunBytes && run_bytes * spatial >= kWantedStripBytes) break;
  }
  return found && (run_bytes >= kClusterRunBytes || plan->groups == spec.groups);
}

bool PlanGridStrips(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                    StripPlan* out) {
  if (!limits.cooperative_launch || limits.compute_capability < 80) return false;
  const std::int64_t max_bytes =
      static_cast<std::int64_t>(limits.shared_bytes_per_block) / kGridBlocksPerMultiprocessor -
      kSystemBytes;
  const std::int64_t max_blocks =
      std::min(kGridMaxBlocksPerStrip, kGridBlocksPerMultiprocessor * limits.multiprocessors);
  bool found = false;
  for (std::int64_t groups = 1; groups <= spec.groups; ++groups) {
    const std::int64_t run_bytes = groups * GroupBytes(spec);
    if (spec.groups % groups != 0 || CutsVectors(spec, groups)) continue;
    if (run_bytes < kMinGridRunBytes && groups != spec.groups) continue;
    StripPlan plan;
    if (!PlanThreads(spec, spatial, groups, kGridThreads, &plan)) break;
    bool fits = false;
    for (std::int64_t blocks = 1; blocks <= max_blocks && !fits; ++blocks) {
      fits = PlanBlocks(spec, spatial, blocks, kGridHeldVectors, max_bytes, &plan);
    }
    if (!fits) break;
    *out = plan;
    found = true;
    if (run_bytes >= kGridRunBytes) break;
  }
  return found;
}

bool PlanChannelsLast(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                      Strategy forced, Plan* plan) {
  const bool free = forced == Strategy::kAuto || forced == Strategy::kChannelsLast;
  StripPlan strips;
  if ((free || forced == Strategy::kCluster) && PlanClusterStrips(spec, spatial, limits, &strips)) {
    plan->strips = Strategy::kCluster;
  } else if ((free || forced == Strategy::kGrid) &&
             PlanGridStrips(spec, spatial, limits, &strips)) {
    plan->strips = Strategy::kGrid;
  } else if (free || forced == Strategy::kSplit) {
    plan->strips = Strategy::kSplit;
  } else {
    return false;
  }
  plan->strategy = Strategy::kChannelsLast;
  plan->blocks_per_row = std::max(1, strips.blocks);
  return true;
}

}  // namespace normd::norm::cuda

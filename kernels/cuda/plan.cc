#include "kernels/cuda/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/channels_last_plan.h"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kGranuleBytes = 16;
constexpr int kLanes = 32;

constexpr std::array<std::pair<Strategy, const char*>, 8> kNames = {{
    {Strategy::kAuto, "auto"},
    {Strategy::kWarp, "warp"},
    {Strategy::kBlock, "block"},
    {Strategy::kCluster, "cluster"},
    {Strategy::kGrid, "grid"},
    {Strategy::kSplit, "split"},
    {Strategy::kChannelsLast, "channels_last"},
    {Strategy::kElementwise, "elementwise"},
}};

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t RoundUpToPowerOfTwo(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

// What the choice looks at.
struct Row {
  std::int64_t granules = 0;
  bool shared_params = false;  // Every row meets the same gamma and beta, element by element.
};

Row DescribeRow(const NormSpec& spec, std::int64_t spatial) {
  Row row;
  row.granules = CeilDiv(RowLength(spec, spatial),
                         kGranuleBytes / static_cast<std::int64_t>(SizeOf(spec.dtype)));
  row.shared_params = spatial == 1 && spec.groups == 1;
  return row;
}

bool PlanWarp(const Row& row, Plan* plan) {
  if (row.granules > kLanes * kWarpMaxGranules) return false;
  plan->strategy = Strategy::kWarp;
  plan->lanes_per_row =
      static_cast<int>(std::min<std::int64_t>(kLanes, RoundUpToPowerOfTwo(row.granules)));
  plan->granules = static_cast<int>(RoundUpToPowerOfTwo(CeilDiv(row.granules, kLanes)));
  return true;
}

std::size_t RingBytes(int granules) {
  return static_cast<std::size_t>(kRingWarps) * kRingStages * RingStageGranules(granules) *
         kGranuleBytes;
}

// Granules of a row that a lane's ring holds on this device; 0 if the device has no rings.
int RingGranules(const DeviceLimits& limits) {
  if (limits.compute_capability < 80 || limits.shared_bytes_per_block <= kRingReservedBytes) {
    return 0;  // No asynchronous copies into shared memory.
  }
  int granules = kRingGranules;
  while (granules > 0 && RingBytes(granules) > limits.shared_bytes_per_block - kRingReservedBytes) {
    --granules;
  }
  return granules;
}

// Cuts a row over `blocks` blocks of `warps` warps.
void CutRing(const Row& row, Strategy strategy, std::int64_t blocks, std::int64_t warps,
             Plan* plan) {
  plan->strategy = strategy;
  plan->blocks_per_row = static_cast<int>(blocks);
  plan->warps = static_cast<int>(warps);
  plan->granules = static_cast<int>(CeilDiv(row.granules, blocks * warps * kLanes));
  plan->shared_bytes = RingBytes(plan->granules);
  plan->params_in_registers = row.shared_params && plan->granules <= kRingParamGranules;
}

// As many warps as the row needs, with few granules to a lane if that suffices. Where every row
// reads all of gamma and beta, a block of the most warps would wait for them: they exceed what the
// first cache holds.
bool PlanBlock(const Row& row, Plan* plan) {
  struct {
    int granules;
    int warps;
  } constexpr kShapes[] = {{kBlockFewGranules, kBlockFewWarps},
                           {kBlockManyGranules, kBlockWarps},
                           {kBlockManyGranules, kBlockMaxWarps}};
  for (const auto& shape : kShapes) {
    const std::int64_t warps = CeilDiv(row.granules, std::int64_t{kLanes} * shape.granules);
    if (warps > shape.warps || (warps > kBlockWarps && row.shared_params)) continue;
    plan->strategy = Strategy::kBlock;
    plan->warps = static_cast<int>(warps);
    plan->granules = shape.granules;
    return true;
  }
  return false;
}

std::int64_t FewestBlocks(const Row& row, int granules) {
  return CeilDiv(row.granules, std::int64_t{kRingWarps} * kLanes * granules);
}

// As few blocks as hold the row, with its parameters in registers if rows share them and the
// largest cluster allows.
bool PlanCluster(const Row& row, const DeviceLimits& limits, Plan* plan) {
  const int granules = RingGranules(limits);
  if (granules == 0) return false;
  std::int64_t blocks = std::max<std::int64_t>(2, FewestBlocks(row, granules));
  if (row.shared_params) {
    const std::int64_t more = FewestBlocks(row, std::min(granules, kRingParamGranules));
    if (more <= kMaxClusterBlocks) blocks = std::max(blocks, more);
  }
  while (blocks <= kMaxClusterBlocks && limits.resident_clusters[blocks] == 0) ++blocks;
  if (blocks > kMaxClusterBlocks) return false;
  CutRing(row, Strategy::kCluster, blocks, kRingWarps, plan);
  return true;
}

// As many teams as fit, then slices as small as the multiprocessors allow, then as few blocks as
// slices of that size need.
bool PlanGrid(const Row& row, const DeviceLimits& limits, Plan* plan) {
  const int granules = RingGranules(limits);
  const int max_blocks = std::min(limits.multiprocessors, kMaxRowBlocks);
  if (granules == 0 || !limits.cooperative_launch) return false;
  const std::int64_t fewest = FewestBlocks(row, granules);
  if (fewest > max_blocks) return false;
  const std::int64_t teams = limits.multiprocessors / fewest;
  const std::int64_t most = std::min<std::int64_t>(limits.multiprocessors / teams, max_blocks);
  CutRing(row, Strategy::kGrid, most, kRingWarps, plan);
  CutRing(row, Strategy::kGrid, FewestBlocks(row, plan->granules), kRingWarps, plan);
  return true;
}

// Where the rows of a segment are contiguous runs.
bool RowsAreContiguous(const NormSpec& spec, std::int64_t spatial) {
  return spec.layout == Layout::kChannelsFirst || spatial == 1 || spec.channels == 1;
}

bool PlanRows(const Row& row, const DeviceLimits& limits, Strategy strategy, Plan* plan) {
  *plan = Plan();
  switch (strategy) {
    case Strategy::kWarp: return PlanWarp(row, plan);
    case Strategy::kBlock: return PlanBlock(row, plan);
    case Strategy::kCluster: return PlanCluster(row, limits, plan);
    case Strategy::kGrid: return PlanGrid(row, limits, plan);
    case Strategy::kSplit: plan->strategy = Strategy::kSplit; return true;
    default: return false;
  }
}

// The first strategy of the list that takes the row; kSplit takes any.
void ChooseRows(const Row& row, const DeviceLimits& limits, Plan* plan) {
  for (Strategy strategy :
       {Strategy::kWarp, Strategy::kBlock, Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
    if (PlanRows(row, limits, strategy, plan)) return;
  }
}

}  // namespace

const char* Name(Strategy strategy) {
  for (const auto& [value, name] : kNames) {
    if (value == strategy) return name;
  }
  return "invalid";
}

Status ParseStrategy(const std::string& name, Strategy* strategy) {
  std::string known;
  for (const auto& [value, text] : kNames) {
    if (name == text) {
      *strategy = value;
      return Status();
    }
    known += known.empty() ? text : std::string(", ") + text;
  }
  return InvalidArgument("strategy: '" + name + "' is not one of " + known);
}

Status MakePlan(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                Strategy forced, Plan* plan) {
  *plan = Plan();
  if (spec.statistics == Statistics::kGiven) {
    plan->strategy = Strategy::kElementwise;
  } else if (!RowsAreContiguous(spec, spatial)) {
    if (!PlanChannelsLast(spec, spatial, limits, forced, plan)) *plan = Plan();
    if (plan->strips == forced) return Status();
  } else {
    const Row row = DescribeRow(spec, spatial);
    if (forced == Strategy::kAuto) {
      ChooseRows(row, limits, plan);
    } else if (!PlanRows(row, limits, forced, plan)) {
      *plan = Plan();
    }
  }
  if (forced != Strategy::kAuto && forced != plan->strategy) {
    return Status(StatusCode::kUnsupported,
                  std::string("strategy: ") + Name(forced) + " cannot compute rows of " +
                      std::to_string(RowLength(spec, spatial)) + " " + Name(spec.dtype) +
                      " elements of this spec on this device");
  }
  return Status();
}

std::string Describe(const Plan& plan) {
  std::string text = Name(plan.strategy);
  const auto number = [](auto value) { return std::to_string(value); };
  switch (plan.strategy) {
    case Strategy::kWarp:
      return text + ": " + number(plan.lanes_per_row) + " lanes x " + number(plan.granules) +
             " granules";
    case Strategy::kBlock:
      return text + ": " + number(plan.warps) + " warps x " + number(plan.granules) + " granules";
    case Strategy::kCluster:
    case Strategy::kGrid:
      return text + ": " + number(plan.blocks_per_row) + " blocks x " + number(plan.warps) +
             " warps x " + number(plan.granules) + " granules, " + number(plan.shared_bytes >> 10) +
             " KiB";
    case Strategy::kChannelsLast:
      return text + ": strips, " + Name(plan.strips) +
             (plan.strips == Strategy::kSplit ? ""
                                              : " of " + number(plan.blocks_per_row) + " blocks");
    default: return text;
  }
}

}  // namespace normd::norm::cuda

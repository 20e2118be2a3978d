#include "kernels/cuda/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/channels_last_plan.h"

namespace norm::cuda {
namespace {

constexpr std::int64_t kGranuleBytes = 16;
constexpr int kLanes = 32;

constexpr std::array<std::pair<Strategy, const char*>, 9> kNames = {{
    {Strategy::kAuto, "auto"},
    {Strategy::kWarp, "warp"},
    {Strategy::kBlock, "block"},
    {Strategy::kPipeline, "pipeline"},
    {Strategy::kCluster, "cluster"},
    {Strategy::kGrid, "grid"},
    {Strategy::kSplit, "split"},
    {Strategy::kChannelsLast, "channels_last"},
    {Strategy::kElementwise, "elementwise"},
}};

// Register strategies. A warp's lane holds at most 8 granules of its row, a block's lane 4: with
// the unpacked values of one granule beside them that leaves registers for full occupancy.
constexpr int kWarpMaxGranules = 8;
constexpr int kBlockGranules = 4;
constexpr int kBlockMaxWarps = 32;

// Ring strategies. Three rows in a ring keep one row's loads in flight while the next is summed and
// the third is stored.
constexpr int kRingMinStages = 3;
constexpr int kRingMaxStages = 8;
constexpr int kRingMaxGranules = 9;
constexpr int kTeamGranules = 8;          // Of a lane, where a team of warps can grow instead.
constexpr int kRegisterParamBytes = 128;  // Of accumulator-sized gamma per lane; as much for beta.

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t RoundUpToPowerOfTwo(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

// What the choice looks at.
struct Row {
  std::int64_t granules = 0;
  int elements_per_granule = 0;
  int accumulator_bytes = 0;
  bool shared_params = false;  // Every row meets the same gamma and beta, element by element.
};

Row DescribeRow(const NormSpec& spec, std::int64_t spatial) {
  Row row;
  row.elements_per_granule = static_cast<int>(kGranuleBytes / SizeOf(spec.dtype));
  row.granules = CeilDiv(RowLength(spec, spatial), row.elements_per_granule);
  row.accumulator_bytes = spec.dtype == DType::kFloat64 ? 8 : 4;
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

bool PlanBlock(const Row& row, Plan* plan) {
  const std::int64_t warps = CeilDiv(row.granules, kLanes * kBlockGranules);
  if (warps > kBlockMaxWarps) return false;
  plan->strategy = Strategy::kBlock;
  plan->granules = kBlockGranules;
  plan->warps = static_cast<int>(warps);
  return true;
}

// The bytes of one row's slice in a ring. Each warp's run has one granule more than it computes: a
// slice that begins between 16-byte boundaries touches it.
std::size_t StageBytes(int granules) {
  return kRingWarps * kGranuleBytes * (static_cast<std::size_t>(granules) * kLanes + 1);
}

// What a device's rings hold; max_granules is 0 if it cannot have one.
struct RingLimits {
  std::size_t shared_bytes = 0;
  int max_granules = 0;
};

RingLimits LimitRing(const DeviceLimits& limits) {
  RingLimits ring;
  if (limits.compute_capability < 80 || limits.shared_bytes_per_block <= kRingReservedBytes) {
    return ring;  // No asynchronous copies into shared memory.
  }
  ring.shared_bytes = limits.shared_bytes_per_block - kRingReservedBytes;
  ring.max_granules = kRingMaxGranules;
  while (ring.max_granules > 0 &&
         kRingMinStages * StageBytes(ring.max_granules) > ring.shared_bytes) {
    --ring.max_granules;
  }
  return ring;
}

constexpr std::int64_t kGranulesPerStep = std::int64_t{kRingWarps} * kLanes;

// Granules of gamma that a lane can keep in registers.
std::int64_t RegisterGranules(const Row& row) {
  return kRegisterParamBytes / (row.elements_per_granule * row.accumulator_bytes);
}

// The fewest blocks that hold a row, or that hold its parameters in registers too, if that is
// possible with at most `max_blocks`. 0: no number of blocks does.
std::int64_t FewestBlocks(const Row& row, const RingLimits& ring, int max_blocks) {
  if (ring.max_granules == 0) return 0;
  if (row.shared_params) {
    const std::int64_t granules = std::min<std::int64_t>(ring.max_granules, RegisterGranules(row));
    const std::int64_t blocks = CeilDiv(row.granules, kGranulesPerStep * granules);
    if (blocks <= max_blocks) return blocks;
  }
  const std::int64_t blocks = CeilDiv(row.granules, kGranulesPerStep * ring.max_granules);
  return blocks <= max_blocks ? blocks : 0;
}

// As many stages as the shared memory holds.
void FillRing(const Row& row, const RingLimits& ring, Plan* plan) {
  plan->stages = static_cast<int>(
      std::min<std::size_t>(kRingMaxStages, ring.shared_bytes / StageBytes(plan->granules)));
  plan->shared_bytes = static_cast<std::size_t>(plan->stages) * StageBytes(plan->granules);
  plan->params_in_registers = row.shared_params && plan->granules <= RegisterGranules(row);
}

void CutRing(const Row& row, const RingLimits& ring, std::int64_t blocks, Plan* plan) {
  plan->blocks_per_row = static_cast<int>(blocks);
  plan->warps = kRingWarps;
  plan->granules = static_cast<int>(CeilDiv(row.granules, blocks * kGranulesPerStep));
  FillRing(row, ring, plan);
}

// As few warps to a team as hold the row and, if possible, its parameters in registers.
bool PlanPipeline(const Row& row, const DeviceLimits& limits, Plan* plan) {
  const RingLimits ring = LimitRing(limits);
  if (FewestBlocks(row, ring, 1) == 0) return false;
  const std::int64_t wanted =
      std::min<std::int64_t>({ring.max_granules, kTeamGranules, RegisterGranules(row)});
  std::int64_t warps = CeilDiv(row.granules, kLanes * wanted);
  warps = std::min<std::int64_t>(warps, kRingWarps);
  plan->strategy = Strategy::kPipeline;
  CutRing(row, ring, 1, plan);
  plan->warps = static_cast<int>(warps);
  plan->granules = static_cast<int>(CeilDiv(row.granules, kLanes * warps));
  FillRing(row, ring, plan);
  return true;
}

bool PlanCluster(const Row& row, const DeviceLimits& limits, Plan* plan) {
  const RingLimits ring = LimitRing(limits);
  std::int64_t blocks = FewestBlocks(row, ring, kMaxClusterBlocks);
  if (blocks == 0) return false;
  blocks = std::max<std::int64_t>(blocks, 2);
  while (blocks <= kMaxClusterBlocks && limits.resident_clusters[blocks] == 0) ++blocks;
  if (blocks > kMaxClusterBlocks) return false;
  plan->strategy = Strategy::kCluster;
  CutRing(row, ring, blocks, plan);
  return true;
}

// As many teams as fit, and then as many blocks to a team as leave none idle.
bool PlanGrid(const Row& row, const DeviceLimits& limits, Plan* plan) {
  const RingLimits ring = LimitRing(limits);
  const int max_blocks = std::min(limits.multiprocessors, kMaxRowBlocks);
  const std::int64_t fewest = FewestBlocks(row, ring, max_blocks);
  if (fewest == 0 || !limits.cooperative_launch) return false;
  const std::int64_t teams = limits.multiprocessors / fewest;
  plan->strategy = Strategy::kGrid;
  CutRing(row, ring, std::min<std::int64_t>(limits.multiprocessors / teams, max_blocks), plan);
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
    case Strategy::kPipeline: return PlanPipeline(row, limits, plan);
    case Strategy::kCluster: return PlanCluster(row, limits, plan);
    case Strategy::kGrid: return PlanGrid(row, limits, plan);
    case Strategy::kSplit: plan->strategy = Strategy::kSplit; return true;
    default: return false;
  }
}

// The first strategy of the list that takes the row; kSplit takes any.
void ChooseRows(const Row& row, const DeviceLimits& limits, Plan* plan) {
  for (Strategy strategy : {Strategy::kWarp, Strategy::kBlock, Strategy::kPipeline,
                            Strategy::kCluster, Strategy::kGrid, Strategy::kSplit}) {
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
    case Strategy::kPipeline:
      return text + ": teams of " + number(plan.warps) + " warps x " + number(plan.granules) +
             " granules, " + number(plan.stages) + " rows each in " +
             number(plan.shared_bytes >> 10) + " KiB" +
             (plan.params_in_registers ? ", parameters in registers" : "");
    case Strategy::kCluster:
    case Strategy::kGrid:
      return text + ": " + number(plan.blocks_per_row) + " blocks x " + number(plan.warps) +
             " warps x " + number(plan.granules) + " granules, " + number(plan.stages) +
             " rows in " + number(plan.shared_bytes >> 10) + " KiB" +
             (plan.params_in_registers ? ", parameters in registers" : "");
    case Strategy::kChannelsLast:
      return text + ": strips, " + Name(plan.strips) +
             (plan.strips == Strategy::kSplit ? ""
                                              : " of " + number(plan.blocks_per_row) + " blocks");
    default: return text;
  }
}

}  // namespace norm::cuda

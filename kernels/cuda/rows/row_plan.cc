#include "kernels/cuda/rows/row_plan.h"

#include <algorithm>

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr int kLanes = 32;
constexpr std::int64_t kBlockBytes = 64 << 10;
constexpr int kSmallCluster = 2;  // Blocks.
constexpr int kMostTeams = 4;     // In a cluster's blocks.

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t RoundUpToPowerOfTwo(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

// The properties of a row that the choice depends on.
struct Row {
  std::int64_t vectors = 0;
  // Gamma and beta are element by element, and all rows of one group share them. The number of
  // groups does not count: a stream computes a run of a sample's groups in a call of its own, and a
  // row's bits must not show it.
  bool shared_params = false;
  // A norm, which has no parameters; its rows are planned like those of shared ones.
  bool bare = false;
  bool few_registers = false;  // Kernels that need few registers can find its parameters.
  bool ragged = false;         // Rows begin and end inside vectors.
  int element_bytes = 0;
  std::int64_t param_bytes = 0;  // With shared_params, of gamma and beta.
  bool activated = false;
};

Row DescribeRow(const NormSpec& spec, std::int64_t spatial, int channel_bytes) {
  Row row;
  row.vectors = CeilDiv(RowLength(spec, spatial),
                        kVectorBytes / static_cast<std::int64_t>(SizeOf(spec.dtype)));
  row.bare = spec.statistics > Statistics::kGiven;
  row.shared_params = spatial == 1 || spec.rows == Rows::kPosition || row.bare;
  row.few_registers = row.shared_params || spec.groups == spec.channels;
  row.element_bytes = static_cast<int>(SizeOf(spec.dtype));
  row.ragged =
      RowLength(spec, spatial) * static_cast<std::int64_t>(SizeOf(spec.dtype)) % kVectorBytes != 0;
  if (row.shared_params) row.param_bytes = RowLength(spec, spatial) * channel_bytes;
  row.activated = spec.activation != Activation::kNone;
  return row;
}

// Rows of whole vectors over kWarpFewVectors take as few lanes as hold them: the more vectors a
// lane has, the fewer instructions a row takes beside those for its elements. The words of ragged
// rows need a whole warp.
bool PlanWarp(const Row& row, Plan* plan) {
  if (row.vectors > kLanes * kWarpMaxVectors) return false;
  const bool narrow = !row.ragged && row.vectors > kWarpFewVectors;
  const std::int64_t lanes = narrow ? CeilDiv(row.vectors, kWarpMaxVectors) : row.vectors;
  plan->strategy = Strategy::kWarp;
  plan->lanes_per_row =
      static_cast<int>(std::min<std::int64_t>(kLanes, RoundUpToPowerOfTwo(lanes)));
  plan->vectors = narrow ? kWarpMaxVectors
                         : static_cast<int>(RoundUpToPowerOfTwo(CeilDiv(row.vectors, kLanes)));
  return true;
}

// The number of blocks that a multiprocessor with 64 Ki registers holds; warps take 256 at a time
// from a quarter each.
int ResidentBlocks(int warps, int registers) {
  return std::min({512 / registers * 4 / warps, 64 / warps, 32});
}

// The bytes of rows on a multiprocessor that keep its memory busy. Elements of 16 bits take more
// instructions per byte, and so more warps.
std::int64_t EnoughBytes(const Row& row) { return (row.element_bytes == 2 ? 80 : 70) << 10; }

// Few vectors per lane if enough rows are then on a multiprocessor, else the number that puts most
// rows there. Ragged rows of narrow elements are limited by instructions, of which more vectors
// take fewer. Kernels that need more take 64 registers in any shape. If every row reads all of
// gamma and beta, a block with the most warps would wait for them: they exceed the L1 cache.
bool PlanBlock(const Row& row, Plan* plan) {
  struct {
    int vectors;
    int warps;
    int registers;
  } const shapes[] = {{kBlockFewVectors, kBlockFewWarps, 40},
                      {kBlockSomeVectors, row.few_registers ? kBlockSomeWarps : 0, 48},
                      {kBlockManyVectors, row.shared_params ? kBlockWarps : kBlockMaxWarps, 64}};
  const bool prefer_many = row.few_registers && row.ragged && row.element_bytes == 2;
  int most = 0;
  for (const auto& shape : shapes) {
    const std::int64_t warps = CeilDiv(row.vectors, std::int64_t{kLanes} * shape.vectors);
    if (warps > shape.warps) continue;
    const int resident = ResidentBlocks(static_cast<int>(warps), shape.registers);
    if (resident < most || (resident == most && !prefer_many)) continue;
    most = resident;
    plan->strategy = Strategy::kBlock;
    plan->warps = static_cast<int>(warps);
    plan->vectors = shape.vectors;
    if (prefer_many || shape.vectors != kBlockFewVectors) continue;
    if (!row.few_registers || resident * row.vectors * kVectorBytes >= EnoughBytes(row)) break;
  }
  return most > 0;
}

// Whether the gamma and beta of a block's slice fit into its shared memory, as float32 at least:
// the plan does not know their type.
bool ClusterParamsFit(const Row& row, const DeviceLimits& limits, int blocks,
                      std::int64_t block_vectors) {
  if (!row.shared_params || row.bare) return true;
  const std::int64_t elements = block_vectors * kVectorBytes / row.element_bytes;
  const auto bytes = static_cast<std::size_t>(2 * elements * std::max(row.element_bytes, 4));
  return kReservedSharedBytes + ClusterSlotBytes(blocks) + bytes <= limits.shared_bytes_per_block;
}

// The smallest cluster whose blocks have room for the slice's parameters and for two teams, each
// with a row's slice in registers. Shorter slices make more teams, which wait at different times.
bool PlanCluster(const Row& row, const DeviceLimits& limits, Plan* plan) {
  if (limits.compute_capability < 90 || row.element_bytes == 8) return false;
  for (int blocks = 2; blocks <= kMaxClusterBlocks; blocks *= 2) {
    if (limits.resident_clusters[static_cast<std::size_t>(blocks)] == 0) continue;
    const std::int64_t steps = CeilDiv(row.vectors, std::int64_t{kLanes} * blocks);
    const std::int64_t fewest = CeilDiv(steps, kClusterVectors);
    if (fewest > kClusterWarps / kClusterTeams) continue;
    const std::int64_t teams = std::min<std::int64_t>(kClusterWarps / fewest, kMostTeams);
    const std::int64_t warps = kClusterWarps / teams;
    const std::int64_t vectors = CeilDiv(steps, warps);
    const std::int64_t block_vectors =
        warps * kLanes * CeilDiv(vectors, kChunkVectors) * kChunkVectors;
    if (!ClusterParamsFit(row, limits, blocks, block_vectors)) continue;
    plan->strategy = Strategy::kCluster;
    plan->warps = static_cast<int>(warps);
    plan->vectors = static_cast<int>(vectors);
    plan->blocks_per_row = blocks;
    return true;
  }
  return false;
}

std::int64_t Chunks(int vectors) { return CeilDiv(vectors, kChunkVectors); }

// Bytes of each warp's run of gamma and beta, which have the row's type.
int GridParamBytes(int vectors) { return 2 * vectors * kLanes * static_cast<int>(kVectorBytes); }

// The memory of all warps for a slot each, with its barrier, which takes as much room as a vector.
std::size_t SlotRoom(bool aligned) {
  return static_cast<std::size_t>(kGridWarps) * (SlotBytes(aligned) + kVectorBytes);
}

int GridSlots(const DeviceLimits& limits, bool aligned, int param_bytes) {
  const std::size_t taken =
      kReservedSharedBytes + static_cast<std::size_t>(kGridWarps) * param_bytes;
  if (limits.shared_bytes_per_block <= taken) return 0;
  return static_cast<int>((limits.shared_bytes_per_block - taken) / SlotRoom(aligned));
}

// The most vectors per lane that leave a third of the slots, and at least one, to incoming rows; 0
// if there is no room.
int SliceVectors(const DeviceLimits& limits, bool with_params) {
  for (int vectors = kGridVectors; vectors > 0; vectors -= kChunkVectors) {
    const int slots = GridSlots(limits, false, with_params ? GridParamBytes(vectors) : 0);
    if (slots - Chunks(vectors) >= std::max(1, slots / 3)) return vectors;
  }
  return 0;
}

std::int64_t FewestBlocks(const Row& row, int vectors) {
  return CeilDiv(row.vectors, std::int64_t{kGridWarps} * kLanes * vectors);
}

// The multiprocessors that teams of this many blocks keep busy.
std::int64_t BusyBlocks(const DeviceLimits& limits, std::int64_t blocks) {
  return limits.multiprocessors / blocks * blocks;
}

// The chunks of a warp if the row is cut over this many blocks.
std::int64_t TeamChunks(const Row& row, std::int64_t blocks) {
  return blocks * CeilDiv(row.vectors, blocks * kGridWarps * kLanes * kChunkVectors);
}

// Cuts a row over as few blocks as hold it, or over up to twice as many if that keeps more
// multiprocessors busy, or keeps as many busy and fills the chunks better.
bool CutGrid(const Row& row, const DeviceLimits& limits, bool with_params, Plan* plan) {
  const int most_vectors = SliceVectors(limits, with_params);
  const std::int64_t most = std::min(limits.multiprocessors, kMaxRowBlocks);
  if (most_vectors == 0 || FewestBlocks(row, most_vectors) > most) return false;
  const std::int64_t fewest = FewestBlocks(row, most_vectors);
  std::int64_t blocks = fewest;
  for (std::int64_t more = fewest + 1; more <= std::min(2 * fewest, most); ++more) {
    const std::int64_t gain = BusyBlocks(limits, more) - BusyBlocks(limits, blocks);
    if (gain > 0 || (gain == 0 && TeamChunks(row, more) < TeamChunks(row, blocks))) blocks = more;
  }
  plan->strategy = Strategy::kGrid;
  plan->warps = kGridWarps;
  plan->vectors = static_cast<int>(CeilDiv(row.vectors, blocks * kGridWarps * kLanes));
  plan->blocks_per_row = static_cast<int>(FewestBlocks(row, plan->vectors));
  plan->params_in_shared = with_params;
  return true;
}

// Norms of float64, which are not meant to be fast, have no kernels there.
bool PlanGrid(const Row& row, const DeviceLimits& limits, Plan* plan) {
  if (limits.compute_capability < 80 || !limits.cooperative_launch) return false;
  if (row.bare && row.element_bytes == 8) return false;
  return (row.shared_params && !row.bare && CutGrid(row, limits, true, plan)) ||
         CutGrid(row, limits, false, plan);
}

// Whether rows are read twice rather than held over the grid. The grid's blocks read all parameters
// of elements anew for each row; each half of the L2 cache keeps copies of its own, and the excess
// comes from memory. Its 11 warps per multiprocessor also hide activations of 16-bit elements
// badly. Two passes read parameters once for all rows. Ragged rows have no such second pass.
bool PrefersTwoPasses(const Row& row, const DeviceLimits& limits) {
  if (row.param_bytes == 0 || row.ragged || row.element_bytes == 8) return false;
  // From there on 16 rows gain more than a single one loses.
  const auto too_many = static_cast<std::int64_t>(limits.l2_bytes / 5 * 3);
  return (row.activated && row.element_bytes == 2) ||
         (limits.l2_bytes > 0 && row.param_bytes > too_many);
}

bool PlanRow(const Row& row, const DeviceLimits& limits, Strategy strategy, Plan* plan) {
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

// The first strategy of the list that takes the row; kSplit takes any. Two rows over a pair of
// blocks keep a multiprocessor busier than one long row in one block. Larger clusters leave
// multiprocessors idle if there are few rows, which only pays for parameters of elements. Ragged
// rows of other parameters need more registers than a cluster's warps have.
void ChooseRows(const Row& row, const DeviceLimits& limits, Plan* plan) {
  if (PlanRow(row, limits, Strategy::kWarp, plan)) return;
  const bool block = PlanRow(row, limits, Strategy::kBlock, plan);
  if (block && row.vectors * kVectorBytes <= kBlockBytes) return;
  Plan cluster;
  if ((!row.ragged || row.shared_params) && PlanRow(row, limits, Strategy::kCluster, &cluster) &&
      (cluster.blocks_per_row <= kSmallCluster || row.shared_params)) {
    *plan = cluster;
    return;
  }
  if (block) return;
  if (!PrefersTwoPasses(row, limits) && PlanRow(row, limits, Strategy::kGrid, plan)) return;
  PlanRow(row, limits, Strategy::kSplit, plan);
}

}  // namespace

GridMemory DivideGridMemory(const DeviceLimits& limits, int vectors, bool aligned,
                            int param_bytes) {
  GridMemory memory;
  memory.param_bytes = GridSlots(limits, aligned, param_bytes) > Chunks(vectors) ? param_bytes : 0;
  memory.slots = GridSlots(limits, aligned, memory.param_bytes);
  memory.bytes =
      SlotRoom(aligned) * memory.slots + static_cast<std::size_t>(kGridWarps) * memory.param_bytes;
  return memory;
}

bool PlanRows(const NormSpec& spec, std::int64_t spatial, int channel_bytes,
              const DeviceLimits& limits, Strategy forced, Plan* plan) {
  const Row row = DescribeRow(spec, spatial, channel_bytes);
  if (forced != Strategy::kAuto) return PlanRow(row, limits, forced, plan);
  ChooseRows(row, limits, plan);
  return true;
}

}  // namespace normd::norm::cuda

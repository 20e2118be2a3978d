// Which kernel computes a row: a pure function of the row and the device.
//
// The plan depends on the spec, on a segment's spatial size and on the device's limits, and on
// nothing else: not on the number of samples, not on the other segments, not on addresses. So a
// sample meets the same kernel, cut in the same way, in every batch. kernels/README.md explains the
// strategies and shows what each costs.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_PLAN_H_
#define NORMD_KERNELS_CUDA_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/norm.h"

namespace normd::norm::cuda {

enum class Strategy : std::uint8_t {
  kAuto = 0,
  kWarp = 1,          // A row in the registers of one warp or of a part of it.
  kBlock = 2,         // A row in the registers of one block.
  kCluster = 3,       // A row in the registers of a thread-block cluster, or strips of
                      // interleaved rows in its shared memory.
  kGrid = 4,          // A row in the registers and shared memory of co-resident blocks.
  kSplit = 5,         // Two passes: partial statistics, then the normalization.
  kChannelsLast = 6,  // Rows that interleave in memory, in strips (channels_last_plan.h).
  kElementwise = 7,   // Given statistics: no rows at all.
};

// "auto", "warp", "block", "cluster", "grid", "split", "channels_last", "elementwise".
const char* Name(Strategy strategy);
// The inverse of Name; InvalidArgument lists the names.
Status ParseStrategy(const std::string& name, Strategy* strategy);

inline constexpr int kMaxClusterBlocks = 16;
// kWarp and kBlock: granules (16 bytes) of a row that a lane may hold in registers, and warps of a
// block.
inline constexpr int kWarpMaxGranules = 4;
inline constexpr int kBlockFewGranules = 4;   // Six blocks of kBlockFewWarps share 64 Ki registers,
inline constexpr int kBlockSomeGranules = 6;  // two of kBlockSomeWarps,
inline constexpr int kBlockManyGranules = 8;  // two of kBlockWarps, or one of kBlockMaxWarps.
inline constexpr int kBlockFewWarps = 8;
inline constexpr int kBlockSomeWarps = 20;
inline constexpr int kBlockWarps = 16;
inline constexpr int kBlockMaxWarps = 32;
// What static shared memory and the system take of a block's.
inline constexpr std::size_t kReservedSharedBytes = 4 << 10;

// kCluster: warps of a block, which are two teams or more that take different rows; granules of a
// row that a lane holds in registers. A team's partials of two rows take shared memory.
inline constexpr int kClusterWarps = 16;
inline constexpr int kClusterGranules = 16;
inline constexpr int kClusterTeams = 2;
constexpr std::size_t ClusterSlotBytes(int blocks) {
  return std::size_t{2} * 16 * kClusterWarps * static_cast<std::size_t>(blocks);
}

// kGrid: warps of a block that hold rows, granules of a row that a lane holds in registers, blocks
// that can share a row. Rows land in slots of a chunk, which is some granules of each lane of a
// warp. Where rows are not aligned a slot has room for one granule more, because a run that begins
// between 16-byte boundaries touches it.
inline constexpr int kGridWarps = 11;
inline constexpr int kGridGranules = 24;
inline constexpr int kMaxRowBlocks = 191;
inline constexpr int kChunkGranules = 4;
constexpr int SlotBytes(bool aligned) { return kChunkGranules * 32 * 16 + (aligned ? 0 : 128); }

// What the plan needs to know of a device. QueryDeviceLimits (normalize.h) fills it in.
struct DeviceLimits {
  int compute_capability = 0;              // 10 * major + minor, such as 90.
  int multiprocessors = 0;                 // That a launch may use.
  std::size_t shared_bytes_per_block = 0;  // The opt-in maximum.
  // resident_clusters[k]: clusters of k blocks, one to a multiprocessor, that the device holds at
  // once; 0 if it knows no clusters of that size.
  std::array<int, kMaxClusterBlocks + 1> resident_clusters = {};
  bool cooperative_launch = false;  // Co-resident blocks are guaranteed.
};

// How one row is computed. Segments whose plans are equal share a launch. The fields that a
// strategy does not use keep their defaults.
struct Plan {
  Strategy strategy = Strategy::kAuto;
  int lanes_per_row = 0;              // kWarp: 1 to 32, a power of two.
  int warps = 0;                      // kBlock, kCluster, kGrid: that share a row, per block.
  int granules = 0;                   // 16-byte pieces of a row that one lane holds.
  int blocks_per_row = 1;             // kCluster, kGrid, and strips.
  bool params_in_shared = false;      // kGrid: cut so that a block's slice of them fits there.
  Strategy strips = Strategy::kAuto;  // kChannelsLast: kCluster, kGrid or kSplit.

  friend bool operator==(const Plan& a, const Plan& b) {
    return a.strategy == b.strategy && a.lanes_per_row == b.lanes_per_row && a.warps == b.warps &&
           a.granules == b.granules && a.blocks_per_row == b.blocks_per_row &&
           a.params_in_shared == b.params_in_shared && a.strips == b.strips;
  }
  friend bool operator!=(const Plan& a, const Plan& b) { return !(a == b); }
};

// How a block of the grid strategy divides its shared memory.
struct GridMemory {
  int slots = 0;        // Of each warp: chunks of rows that can land.
  int param_bytes = 0;  // Of each warp's run; 0 if they do not fit.
  std::size_t bytes = 0;
};

// For rows of so many granules a lane, whose parameters take `param_bytes` for a warp's run. There
// is always room for a row and a chunk more, where the plan is the device's.
GridMemory DivideGridMemory(const DeviceLimits& limits, int granules, bool aligned,
                            int param_bytes);

// Chooses how rows of `spec` with this `spatial` size are computed. `forced` overrides the choice
// where the strategy can compute the row at all; for rows that interleave, kCluster, kGrid and
// kSplit say what holds the strips. The spec must be valid, spatial >= 1. Errors: Unsupported if
// the forced strategy cannot compute this row on this device; with kAuto there is always a plan.
Status MakePlan(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                Strategy forced, Plan* plan);

// One line for people, such as "grid: 12 blocks x 11 warps x 16 granules".
std::string Describe(const Plan& plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_PLAN_H_

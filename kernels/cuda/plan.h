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
  kCluster = 3,       // A row in the shared memory of a thread-block cluster.
  kGrid = 4,          // A row in the shared memory of co-resident blocks.
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
inline constexpr int kBlockManyGranules = 8;  // two of kBlockWarps, or one of kBlockMaxWarps.
inline constexpr int kBlockFewWarps = 8;
inline constexpr int kBlockWarps = 16;
inline constexpr int kBlockMaxWarps = 32;
// The ring strategies (kCluster, kGrid): warps of a block that hold data, rows of each warp
// in shared memory, 16-byte granules of a row per lane, blocks that can share a row, and what
// static shared memory and the system take of a block's.
inline constexpr int kRingWarps = 16;
inline constexpr int kRingStages = 3;
inline constexpr int kRingGranules = 8;
inline constexpr int kMaxRowBlocks = 192;
inline constexpr std::size_t kRingReservedBytes = 4 << 10;

// A warp's run of one row in its ring: one granule more than it computes, because a run that begins
// between 16-byte boundaries touches it.
constexpr int RingStageGranules(int granules) { return granules * 32 + 1; }

// Granules of gamma, and of beta, that a lane keeps in registers.
inline constexpr int kRingParamGranules = 4;

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
  int blocks_per_row = 1;             // kCluster, kGrid.
  bool params_in_registers = false;   // Ring strategies: unless there is an activation.
  std::size_t shared_bytes = 0;       // Dynamic shared memory per block.
  Strategy strips = Strategy::kAuto;  // kChannelsLast: kCluster, kGrid or kSplit.

  friend bool operator==(const Plan& a, const Plan& b) {
    return a.strategy == b.strategy && a.lanes_per_row == b.lanes_per_row && a.warps == b.warps &&
           a.granules == b.granules && a.blocks_per_row == b.blocks_per_row &&
           a.params_in_registers == b.params_in_registers && a.shared_bytes == b.shared_bytes &&
           a.strips == b.strips;
  }
  friend bool operator!=(const Plan& a, const Plan& b) { return !(a == b); }
};

// Chooses how rows of `spec` with this `spatial` size are computed. `forced` overrides the choice
// where the strategy can compute the row at all; for rows that interleave, kCluster, kGrid and
// kSplit say what holds the strips. The spec must be valid, spatial >= 1. Errors: Unsupported if
// the forced strategy cannot compute this row on this device; with kAuto there is always a plan.
Status MakePlan(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                Strategy forced, Plan* plan);

// One line for people, such as "cluster: 16 blocks x 16 warps x 8 granules, 3 rows in 192 KiB".
std::string Describe(const Plan& plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_PLAN_H_

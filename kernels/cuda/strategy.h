// The contents of a plan: which kernel computes a row, how it is cut, and the device's limits.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_STRATEGY_H_
#define NORMD_KERNELS_CUDA_STRATEGY_H_

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
                      // channels-last rows in its shared memory.
  kGrid = 4,          // A row in the registers and shared memory of co-resident blocks.
  kSplit = 5,         // Two passes: partial statistics, then the normalization.
  kChannelsLast = 6,  // Rows that interleave in memory, in strips (strip_plan.h).
  kElementwise = 7,   // Given statistics: no rows at all.
  kStages = 8,        // Stages that the others do not have (stages/stage_plan.h).
};

// The layout of a row's elements in memory; only kStages uses it.
enum class RowPlaces : std::uint8_t {
  kTogether = 0,      // Adjacent.
  kPositions = 1,     // A position's, channels first: `spatial` apart.
  kChannelsLast = 2,  // A group's, channels last: runs of the group's channels.
  kMixedRuns = 3,     // A position's, where runs of channels and positions take turns.
};

// "auto", "warp", "block", "cluster", "grid", "split", "channels_last", "elementwise", "stages".
const char* Name(Strategy strategy);
// The inverse of Name; InvalidArgument lists the names.
Status ParseStrategy(const std::string& name, Strategy* strategy);

inline constexpr int kMaxClusterBlocks = 16;
// Static shared memory and the system's share of a block's shared memory.
inline constexpr std::size_t kReservedSharedBytes = 4 << 10;

// The properties of a device that the plan depends on. QueryDeviceLimits (normalize.h) fills them
// in.
struct DeviceLimits {
  int compute_capability = 0;              // 10 * major + minor, such as 90.
  int multiprocessors = 0;                 // The number that a launch may use.
  std::size_t shared_bytes_per_block = 0;  // The opt-in maximum.
  std::size_t l2_bytes = 0;
  // resident_clusters[k]: clusters of k blocks, one block to a multiprocessor, that the device
  // holds at once; 0 if it does not support that size.
  std::array<int, kMaxClusterBlocks + 1> resident_clusters = {};
  bool cooperative_launch = false;  // Co-resident blocks are guaranteed.
};

// How one row is computed. Segments whose plans are equal share a launch. Fields that a strategy
// does not use keep their defaults.
struct Plan {
  Strategy strategy = Strategy::kAuto;
  int lanes_per_row = 0;          // kWarp, short rows of kStages: 1 to 32, a power of two.
  int warps = 0;                  // kBlock, kCluster, kGrid, kStages: in each block, for one row.
  int vectors = 0;                // 16-byte vectors of a row that one lane holds.
  int blocks_per_row = 1;         // kCluster, kGrid, and strips.
  bool params_in_shared = false;  // kGrid: cut so that a block's slice of them fits there.
  Strategy strips = Strategy::kAuto;        // kChannelsLast: kCluster, kGrid or kSplit.
  RowPlaces places = RowPlaces::kTogether;  // kStages.
  int slabs = 0;  // kStages: blocks that share the positions of a group, channels first.

  friend bool operator==(const Plan& a, const Plan& b) {
    return a.strategy == b.strategy && a.lanes_per_row == b.lanes_per_row && a.warps == b.warps &&
           a.vectors == b.vectors && a.blocks_per_row == b.blocks_per_row &&
           a.params_in_shared == b.params_in_shared && a.strips == b.strips &&
           a.places == b.places && a.slabs == b.slabs;
  }
  friend bool operator!=(const Plan& a, const Plan& b) { return !(a == b); }
};

// One line for people, such as "grid: 12 blocks x 11 warps x 16 vectors".
std::string Describe(const Plan& plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STRATEGY_H_

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

namespace norm::cuda {

enum class Strategy : std::uint8_t {
  kAuto = 0,
  kWarp = 1,          // A row in the registers of one warp or of a part of it.
  kBlock = 2,         // A row in the registers of one block.
  kPipeline = 3,      // Persistent blocks, rows in a ring in shared memory.
  kCluster = 4,       // As kPipeline, a row spread over a thread-block cluster.
  kGrid = 5,          // As kPipeline, a row spread over co-resident blocks.
  kSplit = 6,         // Two passes: partial statistics, then the normalization.
  kChannelsLast = 7,  // Rows that interleave in memory, in strips (channels_last_plan.h).
  kElementwise = 8,   // Given statistics: no rows at all.
};

// "auto", "warp", "block", "pipeline", "cluster", "grid", "split", "channels_last", "elementwise".
const char* Name(Strategy strategy);
// The inverse of Name; InvalidArgument lists the names.
Status ParseStrategy(const std::string& name, Strategy* strategy);

inline constexpr int kMaxClusterBlocks = 16;
// The ring strategies: warps of a block that hold data, blocks that can share a row, and what the
// block's static shared memory and the system take of a multiprocessor's.
inline constexpr int kRingWarps = 16;
inline constexpr int kMaxRowBlocks = 192;
inline constexpr std::size_t kRingReservedBytes = 3 << 10;

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
  int warps = 0;                      // That hold data, per block.
  int granules = 0;                   // 16-byte pieces of a row that one lane holds.
  int blocks_per_row = 1;             // kCluster, kGrid, and kChannelsLast in either.
  int stages = 0;                     // Ring strategies: rows per block in shared memory.
  bool params_in_registers = false;   // Ring strategies: gamma and beta are read once per block.
  std::size_t shared_bytes = 0;       // Dynamic shared memory per block.
  Strategy strips = Strategy::kAuto;  // kChannelsLast: kCluster, kGrid or kSplit.

  friend bool operator==(const Plan& a, const Plan& b) {
    return a.strategy == b.strategy && a.lanes_per_row == b.lanes_per_row && a.warps == b.warps &&
           a.granules == b.granules && a.blocks_per_row == b.blocks_per_row &&
           a.stages == b.stages && a.params_in_registers == b.params_in_registers &&
           a.shared_bytes == b.shared_bytes && a.strips == b.strips;
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

}  // namespace norm::cuda

#endif  // NORMD_KERNELS_CUDA_PLAN_H_

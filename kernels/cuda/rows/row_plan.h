// How contiguous rows are cut for the kernels of this folder: a pure function of the row and the
// device.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_ROWS_ROW_PLAN_H_
#define NORMD_KERNELS_CUDA_ROWS_ROW_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// kWarp and kBlock: vectors (16 bytes) of a row that a lane may hold in registers, and warps of a
// block.
inline constexpr int kWarpMaxVectors = 4;
inline constexpr int kWarpFewVectors = 8;    // Up to here a lane has one.
inline constexpr int kBlockFewVectors = 4;   // Six blocks of kBlockFewWarps share 64 Ki registers,
inline constexpr int kBlockSomeVectors = 6;  // two of kBlockSomeWarps,
inline constexpr int kBlockManyVectors = 8;  // two of kBlockWarps, or one of kBlockMaxWarps.
inline constexpr int kBlockFewWarps = 8;
inline constexpr int kBlockSomeWarps = 20;
inline constexpr int kBlockWarps = 16;
inline constexpr int kBlockMaxWarps = 32;
// kCluster: warps of a block, which are at least two teams with different rows; vectors of a row
// that a lane holds in registers. A team's partials of two rows take shared memory.
inline constexpr int kClusterWarps = 16;
inline constexpr int kClusterVectors = 16;
inline constexpr int kClusterTeams = 2;
constexpr std::size_t ClusterSlotBytes(int blocks) {
  return std::size_t{2} * 16 * kClusterWarps * static_cast<std::size_t>(blocks);
}

// kGrid: warps of a block that hold rows, vectors of a row that a lane holds in registers, blocks
// that can share a row. Rows arrive in slots of a chunk, which is some vectors of each lane of a
// warp. For unaligned rows a slot has room for one more vector, because a run that begins between
// 16-byte boundaries touches it.
inline constexpr int kGridWarps = 11;
inline constexpr int kGridVectors = 24;
inline constexpr int kMaxRowBlocks = 191;
inline constexpr int kChunkVectors = 4;
constexpr int SlotBytes(bool aligned) { return kChunkVectors * 32 * 16 + (aligned ? 0 : 128); }

// The division of a grid block's shared memory.
struct GridMemory {
  int slots = 0;        // Per warp: chunks of rows that can arrive.
  int param_bytes = 0;  // Per warp's run; 0 if they do not fit.
  std::size_t bytes = 0;
};

// For rows of `vectors` vectors per lane, whose parameters take `param_bytes` for a warp's run.
// There is always room for a row and one more chunk if the plan is the device's.
GridMemory DivideGridMemory(const DeviceLimits& limits, int vectors, bool aligned, int param_bytes);

// Chooses how contiguous rows of `spec` with this `spatial` size are computed, or takes `forced`.
// gamma and beta take `channel_bytes` per channel. False if `forced` cannot compute the rows on
// this device, and for strategies of other rows.
bool PlanRows(const NormSpec& spec, std::int64_t spatial, int channel_bytes,
              const DeviceLimits& limits, Strategy forced, Plan* plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_ROW_PLAN_H_

// How a channels-last tensor is cut for kernels whose rows interleave in memory.
//
// A position is one spatial index of one sample: `channels` consecutive elements. A *strip* is a
// range of whole groups over all positions of a sample. A thread of a block takes one vector of a
// position, its column, and returns to that column every `rows` positions: so each thread keeps its
// channels, and memory sees runs as wide as the strip.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_PLAN_H_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

struct StripPlan {
  int groups = 0;                // Per strip; divides the spec's.
  int columns = 0;               // Vectors of a strip at one position.
  int rows = 0;                  // Positions that a block's threads touch in one step.
  int blocks = 0;                // Blocks that share a strip's positions.
  int vectors = 0;               // The most that one thread holds.
  int held = 0;                  // The vectors in registers; the rest is in shared memory.
  int threads = 0;               // Per block, whole warps.
  std::size_t shared_bytes = 0;  // Dynamic shared memory per block.
};

// The number of groups whose partials a thread leaves for a column of `count` channels: 1 if groups
// end with columns, 2 if a column touches at most two, else one for each channel.
constexpr int PartsOfColumn(std::int64_t group_channels, std::int64_t count) {
  if (group_channels % count == 0) return 1;
  return group_channels > count || count == 2 ? 2 : static_cast<int>(count);
}

// Blocks of the grid's kernel: limited by its registers, and by the slots that a warp can read.
inline constexpr int kGridHeldVectors = 4;
inline constexpr int kGridBlocksPerMultiprocessor = 2;
inline constexpr int kGridMaxBlocksPerStrip = 32;

// Cuts strips that fit the shared memory of a thread-block cluster, or of one block. False if none
// fit at a width that memory access favours.
bool PlanClusterStrips(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                       StripPlan* plan);

// Cuts strips for co-resident blocks. False if they do not fit either.
bool PlanGridStrips(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                    StripPlan* plan);

// Chooses where the strips are held, or takes `forced` (kAuto and kChannelsLast: the choice), and
// fills in a plan. False if `forced` is impossible.
bool PlanChannelsLast(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                      Strategy forced, Plan* plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_PLAN_H_

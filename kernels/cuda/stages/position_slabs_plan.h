// How a group of channels at all positions is cut into slabs for position_slabs.cu: a pure function
// of the numbers of channels, positions and blocks.
//
// Host code without a CUDA dependency, so that it is tested on any machine. The kernels call it
// too.

#ifndef NORMD_KERNELS_CUDA_STAGES_POSITION_SLABS_PLAN_H_
#define NORMD_KERNELS_CUDA_STAGES_POSITION_SLABS_PLAN_H_

#include <cstdint>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

inline constexpr int kSlabThreads = 256;
inline constexpr int kMostSlabs = 8;  // Every device with clusters has clusters of so many blocks.

// The most channels of a tile.
inline constexpr int kMostTileChannels = 1024;

// Bytes per position or channel: of its statistics, its normalization, its factor and offset.
inline constexpr int kPartialBytes = 16;
inline constexpr int kScaleBytes = 16;
inline constexpr int kFactorBytes = 8;

struct SlabShape {
  int channels;  // The last slabs may have fewer or none.
  int splits;    // Threads that share a position.
  int bytes;     // A slab's, rounded up to vectors.

  // A group has fewer than 2^31 bytes.
  static constexpr SlabShape Of(int channels, int spatial, int element_bytes, int slabs) {
    constexpr int kVector = 16;
    const int row_bytes = spatial * element_bytes;
    // Slabs are as far apart as vectors in memory.
    int unit = 1;
    while (unit * row_bytes % kVector != 0) unit *= 2;
    SlabShape shape = {};
    shape.channels = ((channels + slabs - 1) / slabs + unit - 1) / unit * unit;
    shape.bytes = (shape.channels * row_bytes + kVector - 1) / kVector * kVector;
    shape.splits = spatial < kSlabThreads ? kSlabThreads / spatial : 1;
    return shape;
  }

  // The shared memory of a block.
  constexpr int shared_bytes(int spatial) const {
    return bytes + spatial * (splits * kPartialBytes + kScaleBytes) + channels * kFactorBytes;
  }
};

// Whether positions.cu and position_slabs.cu have the stages of a spec without an input bias.
bool TilesPositions(const NormSpec& spec);

// The number of slabs for a segment of RowPlaces::kPositions, which position_slabs.cu computes
// then. 0: it comes in tiles, which are faster where they move words of several positions.
int SlabsOf(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_POSITION_SLABS_PLAN_H_

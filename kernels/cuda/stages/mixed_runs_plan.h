// How rows of RowPlaces::kMixedRuns are cut into tiles for mixed_runs.cu: a pure function of
// the spec, of a segment's runs of positions and of the device's limits.
//
// Rows of neighbouring positions of the innermost run of positions are neighbours in memory: `run`
// elements apart if that many channels are adjacent, and 1 if positions are innermost. A *line* is
// the elements of a tile's neighbours at one run of channels: positions * run adjacent elements.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_PLAN_H_
#define NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

inline constexpr int kMostTileRows = 64;
inline constexpr int kMostTileThreads = 512;

struct MixedRunsPlan {
  int run = 0;            // Adjacent channels.
  int run_positions = 0;  // Rows that are neighbours in memory.
  int positions = 0;      // The number of neighbours in a tile.
  int runs = 0;  // Runs of positions in a tile; several only if it has all positions of each.
  // A chunk is the part in shared memory at once: `lines` runs of channels, or `elements` of a run
  // that is longer than a chunk. Rows of one chunk are read once.
  int lines = 0;
  int elements = 0;
  int chunks = 0;
  int row_stride = 0;  // Bytes between rows in shared memory.
  int threads = 0;
  int lanes = 0;  // Lanes of a warp that share a row, a power of two.
  int parts = 0;  // Warps that share a row, a power of two; 1 if lanes < 32.
  std::size_t shared_bytes = 0;

  int rows() const { return positions * runs; }
};

// Whether mixed_runs.cu has the stages for a segment of these sizes without an input bias.
bool TilesMixedRuns(const NormSpec& spec, std::int64_t spatial);

// The spec's type is not float64, and a sample has fewer than 2^31 elements.
MixedRunsPlan PlanMixedRuns(const NormSpec& spec, const RunSizes& spatial_runs,
                            const DeviceLimits& limits);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_PLAN_H_

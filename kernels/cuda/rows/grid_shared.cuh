// What a grid kernel is told of its launch, and what the warps of a block tell each other.

#ifndef NORMD_KERNELS_CUDA_ROWS_GRID_SHARED_CUH_
#define NORMD_KERNELS_CUDA_ROWS_GRID_SHARED_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/staging_ring.cuh"

namespace normd::norm::cuda {

// How a launch cuts rows and shared memory.
struct GridShape {
  int blocks_per_row;
  int vectors;
  int slots;
  int param_bytes;  // Each warp's gamma and beta in shared memory; 0 if they are not there.
  // Rows are stored as soon as their scale is known. Otherwise after the next row's partial is
  // published, so that it waits behind nothing that the block stores.
  bool eager;
  bool rows_pass;  // Rows leave the L2 cache before gamma and beta, which are read there each time.
};

// What the warps of a block tell each other, for even and odd turns.
template <typename A>
struct GridShared {
  Moments<A> partials[2][kGridWarps];
  RowScale<A> scales[2];
  // Barriers, at which every lane arrives for what it has read and written itself.
  std::uint64_t summed[2];  // All partials of a turn are there,
  std::uint64_t scaled[2];  // its scale and one more row of the queue are.
  RowQueue queue;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_SHARED_CUH_

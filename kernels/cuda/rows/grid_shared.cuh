// The description of a grid kernel's launch, and the memory through which a block's warps
// communicate.

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
  // Rows are stored as soon as their scale is known; otherwise only after the next row's partial is
  // published, so that the partial waits for none of the block's stores.
  bool eager;
  // Rows leave the L2 cache before gamma and beta, which are read from there each time.
  bool rows_pass;
};

// The exchange between the warps of a block, for even and odd turns.
template <typename A>
struct GridShared {
  Moments<A> partials[2][kGridWarps];
  RowScale<A> scales[2];
  // Barriers, at which every lane arrives for its own reads and writes.
  std::uint64_t summed[2];  // All partials of a turn are there.
  std::uint64_t scaled[2];  // Its scale and one more row of the queue are there.
  RowQueue queue;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_SHARED_CUH_

// A dynamic row scheduler: teams of blocks draw rows from a counter in the workspace while a kernel
// runs. Under full load multiprocessors differ by a third in the memory bandwidth that they get, so
// equal shares would leave the fast ones idle at the end. The block that computes a row does not
// change its bits.

#ifndef NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_
#define NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"

namespace normd::norm::cuda {

// The head of the workspace, zero between launches.
struct ExchangeArea {
  unsigned next_row;
  unsigned reserved[31];
  unsigned leaving;  // Blocks that no longer use the area.
  unsigned more[31];
  uint4 words[(kExchangeBytes - 256) / sizeof(uint4)];
};
static_assert(sizeof(ExchangeArea) == kExchangeBytes);

// All threads of every block call it last: the last block to do so zeroes the area, with `words` of
// its words, for the next launch.
__device__ inline void LeaveExchange(ExchangeArea* area, unsigned words) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // Orders this block's accesses to the area before it reports that it leaves.
    last = atomicAdd(&area->leaving, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    area->words[i] = make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    area->next_row = 0;
    area->leaving = 0;
  }
}

// The rows of a team: the first two follow from its number, the others from the work counter, each
// drawn a turn before it is announced. One warp draws them, with all lanes.
class RowScheduler {
 public:
  __device__ RowScheduler(unsigned* next_row, std::uint32_t first, std::uint32_t teams)
      : next_row_(next_row), first_(first), teams_(teams) {}

  // The row of turn + 1.
  __device__ std::uint32_t After(std::uint32_t turn) {
    const std::uint32_t row = 2 * teams_ + __shfl_sync(kAllLanes, drawn_, 0);
    if (threadIdx.x % kLanes == 0) drawn_ = atomicAdd(next_row_, 1);
    return turn == 0 ? first_ + teams_ : row;
  }

  // Call after the team's last turn, if it had any. A number is drawn for each computed row: the
  // team with the last one resets the counter.
  __device__ void Leave(std::uint32_t rows) const {
    if (threadIdx.x % kLanes == 0 && drawn_ == rows - 1) *next_row_ = 0;
  }

 private:
  unsigned* const next_row_;
  const std::uint32_t first_;
  const std::uint32_t teams_;
  unsigned drawn_ = 0;  // In flight.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_

// Rows handed out while a kernel runs. Multiprocessors differ in how much of the memory's bandwidth
// they get, by a third under full load; equal shares leave the fast ones idle at the end, tickets
// do not. Which block computes a row changes nothing in its bits.

#ifndef NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_
#define NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"

namespace normd::norm::cuda {

// The head of the workspace, zero between launches.
struct MeetingRoom {
  unsigned next_ticket;
  unsigned reserved[31];
  unsigned leaving;  // Blocks that need the room no more.
  unsigned more[31];
  uint4 words[(kMeetingBytes - 256) / sizeof(uint4)];
};
static_assert(sizeof(MeetingRoom) == kMeetingBytes);

// All threads of every block call it last: the last block to do so zeroes the room for the next
// launch, with `words` of its words.
__device__ inline void LeaveRoom(MeetingRoom* room, unsigned words) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // What this block does in the room comes before it says that it leaves.
    last = atomicAdd(&room->leaving, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    room->words[i] = make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    room->next_ticket = 0;
    room->leaving = 0;
  }
}

// The rows of a team: the first two follow from its number, the others from tickets, each fetched a
// turn before it is announced. One warp asks for them, with all lanes.
class TeamRows {
 public:
  __device__ TeamRows(unsigned* next_ticket, std::uint32_t first, std::uint32_t teams)
      : next_ticket_(next_ticket), first_(first), teams_(teams) {}

  // The row of turn + 1.
  __device__ std::uint32_t After(std::uint32_t turn) {
    const std::uint32_t row = 2 * teams_ + __shfl_sync(kAllLanes, ticket_, 0);
    if (threadIdx.x % kLanes == 0) ticket_ = atomicAdd(next_ticket_, 1);
    return turn == 0 ? first_ + teams_ : row;
  }

  // After the team's last turn, if it had any. A ticket is fetched for each row that is computed:
  // who holds the last of all leaves the counter as it was.
  __device__ void Leave(std::uint32_t rows) const {
    if (threadIdx.x % kLanes == 0 && ticket_ == rows - 1) *next_ticket_ = 0;
  }

 private:
  unsigned* const next_ticket_;
  const std::uint32_t first_;
  const std::uint32_t teams_;
  unsigned ticket_ = 0;  // Being fetched.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_WORK_COUNTER_CUH_

// Rows handed out while a kernel runs. Multiprocessors differ in how much of the memory's bandwidth
// they get, by a third under full load; equal shares leave the fast ones idle at the end, tickets
// do not. Which block computes a row changes nothing in its bits.

#ifndef NORMD_KERNELS_CUDA_TICKETS_CUH_
#define NORMD_KERNELS_CUDA_TICKETS_CUH_

#include <cstdint>

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

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_TICKETS_CUH_

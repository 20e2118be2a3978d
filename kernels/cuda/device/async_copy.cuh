// 16-byte copies that a lane issues and does not wait for (cp.async): from 8.0 on. cuda::ptx has
// only their arrival.

#ifndef NORMD_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_

#include "kernels/cuda/device/mbarrier.cuh"

namespace normd::norm::cuda {

// Copies 16 bytes into shared memory; both addresses are multiples of 16. The calling thread can
// read them after its AwaitCopies or AwaitCopyGroups.
[[maybe_unused]] __device__ inline void CopyToShared(std::uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
// The same with a policy of the L2 cache (cache_policy.cuh).
[[maybe_unused]] __device__ inline void CopyToShared(std::uint32_t to, const void* from,
                                                     [[maybe_unused]] std::uint64_t policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
#endif
}

[[maybe_unused]] __device__ inline void AwaitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Ends a group: the copies that the thread has issued since the last group.
[[maybe_unused]] __device__ inline void EndCopyGroup() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most `pending` of the thread's last groups are in flight; values above three count
// as three.
[[maybe_unused]] __device__ inline void AwaitCopyGroups(int pending) {
#if __CUDA_ARCH__ >= 800
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
  }
#endif
}

// Arrives at a barrier when the lane's copies are complete.
[[maybe_unused]] __device__ inline void ArriveWithCopies(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
  ::cuda::ptx::cp_async_mbarrier_arrive_noinc(BarrierAt(barrier));
#endif
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_

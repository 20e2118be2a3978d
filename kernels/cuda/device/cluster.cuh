// Operations between the blocks of a thread-block cluster: from 9.0 on. Elsewhere the functions do
// nothing, and no kernel that calls them is launched.

#ifndef NORMD_KERNELS_CUDA_DEVICE_CLUSTER_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_CLUSTER_CUH_

#include "kernels/cuda/device/mbarrier.cuh"

namespace normd::norm::cuda {

[[maybe_unused]] __device__ inline int ClusterRank() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(::cuda::ptx::get_sreg_cluster_ctarank());
#else
  return 0;
#endif
}

// All threads of all blocks of a cluster call these, all at the same place in the code.
[[maybe_unused]] __device__ inline void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// These order published barriers, but no data: that would wait for all stores to global memory.
[[maybe_unused]] __device__ inline void ArriveAtClusterRelaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
[[maybe_unused]] __device__ inline void AwaitCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// Both, for threads that need not have converged. The arrival in cuda::ptx lets the compiler move
// memory accesses across it.
[[maybe_unused]] __device__ inline void SyncClusterRelaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The address of the same place in the shared memory of block `rank`.
[[maybe_unused]] __device__ inline std::uint32_t PlaceInBlock(std::uint32_t address,
                                                              [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
#else
  return address;
#endif
}

// Stores 16 bytes there and counts them at `barrier`, which is in the same block.
[[maybe_unused]] __device__ inline void StoreInBlock(std::uint32_t to, const uint4& word,
                                                     std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  const std::uint32_t words[4] = {word.x, word.y, word.z, word.w};
  ::cuda::ptx::st_async(SharedPointer<std::uint32_t>(to), words, BarrierAt(barrier));
#endif
}

// The same without counting: a cluster barrier orders it.
[[maybe_unused]] __device__ inline void StoreInBlock([[maybe_unused]] std::uint32_t to,
                                                     [[maybe_unused]] const uint4& word) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word.x),
               "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
#endif
}

// The 16 bytes there; a cluster barrier has ordered them.
[[maybe_unused]] __device__ inline uint4 LoadFromBlock([[maybe_unused]] std::uint32_t from) {
  uint4 word = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(from)
               : "memory");
#endif
  return word;
}

// Arrives at the barrier in the same place of block `rank`.
[[maybe_unused]] __device__ inline void ArriveInBlock(std::uint32_t barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 there;"
      "  mapa.shared::cluster.u32 there, %0, %1;"
      "  mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
#endif
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_CLUSTER_CUH_

// Barriers in shared memory (mbarrier), by address. A phase ends with its last arrival and, if an
// arrival expects bytes, with the last of them; a thread that awaits it sees everything written
// before the arrivals. From 8.0 on; elsewhere nothing may depend on them.
//
// Arrivals and waits have block scope unless the name says otherwise: with cluster scope each costs
// a fence of all the device's memory.

#ifndef NORMD_KERNELS_CUDA_DEVICE_MBARRIER_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_MBARRIER_CUH_

#include <cuda/ptx>

#include "kernels/cuda/device/shared_memory.cuh"

namespace normd::norm::cuda {

inline constexpr int kBarrierBytes = 8;

[[maybe_unused]] __device__ inline std::uint64_t* BarrierAt(std::uint32_t address) {
  return SharedPointer<std::uint64_t>(address);
}

// Other threads may use it after PublishBarriers and a barrier of the block, or of the warp if only
// that warp uses it.
[[maybe_unused]] __device__ inline void InitBarrier(std::uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  ::cuda::ptx::mbarrier_init(BarrierAt(barrier), static_cast<std::uint32_t>(arrivals));
#endif
}
// Makes initialised barriers visible to the cluster and to the copy engine.
[[maybe_unused]] __device__ inline void PublishBarriers() {
#if __CUDA_ARCH__ >= 900
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
#endif
}

// Arrivals in assembly: those of cuda::ptx return the phase, which takes registers even if nothing
// reads it.
[[maybe_unused]] __device__ inline void ArriveAtBarrier(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Arrives, and keeps the phase open until `bytes` have come. From 9.0 on.
[[maybe_unused]] __device__ inline void ArriveExpecting(std::uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// Whether the phase of this parity has ended.
[[maybe_unused]] __device__ inline bool HasBarrierPassed(std::uint32_t barrier,
                                                         std::uint32_t parity) {
#if __CUDA_ARCH__ >= 800
  return ::cuda::ptx::mbarrier_test_wait_parity(BarrierAt(barrier), parity);
#else
  return true;
#endif
}

[[maybe_unused]] __device__ inline void AwaitBarrier(std::uint32_t barrier, std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  while (!::cuda::ptx::mbarrier_try_wait_parity(BarrierAt(barrier), parity)) {
  }
#else
  while (!HasBarrierPassed(barrier, parity)) {
  }
#endif
}

// The same, in a form that the compiler sees as one instruction: it unrolls loops around this one,
// but not around the other. From 9.0 on.
[[maybe_unused]] __device__ inline void AwaitBarrierInline(std::uint32_t barrier,
                                                           std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done;"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
      "  @!done bra AGAIN; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// The same for writes of other blocks of the cluster before they arrived. From 9.0 on.
[[maybe_unused]] __device__ inline void AwaitBarrierOfCluster(std::uint32_t barrier,
                                                              std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  while (!::cuda::ptx::mbarrier_try_wait_parity(
      ::cuda::ptx::sem_acquire, ::cuda::ptx::scope_cluster, BarrierAt(barrier), parity)) {
  }
#endif
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_MBARRIER_CUH_

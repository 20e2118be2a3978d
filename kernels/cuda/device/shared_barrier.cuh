// Barriers in shared memory (mbarrier), by address, and the loads that they guard. A phase ends
// with its last arrival; who awaits it sees what was written before the arrivals. From 8.0 on.

#ifndef NORMD_KERNELS_CUDA_DEVICE_SHARED_BARRIER_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_SHARED_BARRIER_CUH_

#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

[[maybe_unused]] __device__ inline std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Other threads may use it after a barrier of the block, or of the warp where it has one alone.
[[maybe_unused]] __device__ inline void InitBarrier(std::uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

[[maybe_unused]] __device__ inline void ArriveAtBarrier(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Whether the phase of this parity has ended.
[[maybe_unused]] __device__ inline bool HasBarrierPassed(std::uint32_t barrier,
                                                         std::uint32_t parity) {
  std::uint32_t passed = 1;
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred p;"
      "  mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
      "  selp.u32 %0, 1, 0, p; }"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return passed != 0;
}

[[maybe_unused]] __device__ inline void AwaitBarrier(std::uint32_t barrier, std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t passed = 0;
  while (passed == 0) {
    asm volatile(
        "{ .reg .pred p;"
        "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        "  selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#else
  while (!HasBarrierPassed(barrier, parity)) {
  }
#endif
}

// Reads and writes stay in order with each other and with barriers.
[[maybe_unused]] __device__ inline Granule ReadShared(std::uint32_t address) {
  Granule granule;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(granule.x), "=r"(granule.y), "=r"(granule.z), "=r"(granule.w)
               : "r"(address));
  return granule;
}
[[maybe_unused]] __device__ inline void WriteShared(std::uint32_t address, const Granule& granule) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(granule.x),
               "r"(granule.y), "r"(granule.z), "r"(granule.w));
}

// Copies 16 bytes into shared memory; both addresses are multiples of 16. It is done for the caller
// after its AwaitCopies.
[[maybe_unused]] __device__ inline void CopyToShared(std::uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
[[maybe_unused]] __device__ inline void AwaitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_SHARED_BARRIER_CUH_

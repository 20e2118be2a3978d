// Cache policies for tensors that are larger than the caches: which lines the L2 cache keeps.
//
// Lines that were read are kept in preference to lines that were written (evict_last). Written
// lines then leave the cache early and in order, and lines of other kernels are displaced.
// docs/experiments.md shows what other policies cost.

#ifndef NORMD_KERNELS_CUDA_DEVICE_CACHE_POLICY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_CACHE_POLICY_CUH_

#include <cstdint>

namespace normd::norm::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// For instructions that take an L2 policy: lines that are read are kept longest.
__device__ inline std::uint64_t KeepPolicy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Lines that are read leave first: for tensors beside others that should stay.
__device__ inline std::uint64_t PassPolicy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Loads by KeepPolicy; zeros unless `exists`. There is no branch, so that a lane's loads are issued
// back to back.
__device__ inline uint4 LoadKeptIf(bool exists, const uint4* address) {
  uint4 value = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.u32 exists, %6, 0;\n\t"
      "@exists ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;\n\t"
      "}"
      : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
      : "l"(address), "l"(KeepPolicy()), "r"(static_cast<unsigned>(exists)));
  return value;
}
// The same for addresses that exist.
__device__ inline uint4 LoadKept(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address), "l"(KeepPolicy()));
  return value;
}
__device__ inline uint2 LoadKept(const uint2* address) {
  uint2 value;
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(value.x), "=r"(value.y)
               : "l"(address), "l"(KeepPolicy()));
  return value;
}
__device__ inline std::uint32_t LoadKept(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;"
               : "=r"(value)
               : "l"(address), "l"(KeepPolicy()));
  return value;
}

#else  // Devices whose cache takes no policy.

__device__ inline std::uint64_t KeepPolicy() { return 0; }
__device__ inline std::uint64_t PassPolicy() { return 0; }

template <typename T>
__device__ inline T LoadKept(const T* address) {
  return *address;
}
__device__ inline uint4 LoadKeptIf(bool exists, const uint4* address) {
  return exists ? *address : make_uint4(0, 0, 0, 0);
}

#endif

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_CACHE_POLICY_CUH_

// Shared memory by address: 32 bits, which take half the registers of a pointer.

#ifndef NORMD_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_

#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

[[maybe_unused]] __device__ inline std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
// The inverse, for functions such as those of cuda::ptx that take a pointer and turn it into an
// address again: the compiler removes both conversions.
template <typename T>
__device__ inline T* SharedPointer(std::uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// 16 bytes at a multiple of 16. Reads and writes stay in order with each other and with barriers.
[[maybe_unused]] __device__ inline Vector ReadShared(std::uint32_t address) {
  Vector vector;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
               : "r"(address));
  return vector;
}
[[maybe_unused]] __device__ inline void WriteShared(std::uint32_t address, const Vector& vector) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(vector.x),
               "r"(vector.y), "r"(vector.z), "r"(vector.w));
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_

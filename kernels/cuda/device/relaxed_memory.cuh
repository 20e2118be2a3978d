// Relaxed 16-byte accesses to global memory through which blocks of one launch communicate: each is
// seen as a whole and is ordered with nothing else.

#ifndef NORMD_KERNELS_CUDA_DEVICE_RELAXED_MEMORY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_RELAXED_MEMORY_CUH_

namespace normd::norm::cuda {

__device__ inline void StoreRelaxed(uint4* to, const uint4& word) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x),
               "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}
__device__ inline uint4 LoadRelaxed(const uint4* from) {
  uint4 word;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_RELAXED_MEMORY_CUH_

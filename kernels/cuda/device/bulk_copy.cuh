// Bulk copies by the copy engine into shared memory (cp.async.bulk): one thread issues them, a
// barrier counts their bytes. From 9.0 on; copies into several blocks only on 9.0a.
//
// Not through cuda::ptx: its functions convert the source to a global address at each call, which
// keeps the compiler from advancing one address through an unrolled loop.

#ifndef NORMD_KERNELS_CUDA_DEVICE_BULK_COPY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_BULK_COPY_CUH_

#include <cstdint>

namespace normd::norm::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- Contiguous bytes: addresses and their number are multiples of 16.

[[maybe_unused]] __device__ inline void CopyBulk(std::uint32_t to, const void* from, int bytes,
                                                 std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// The same with a policy of the L2 cache (cache_policy.cuh).
[[maybe_unused]] __device__ inline void CopyBulk(std::uint32_t to, const void* from, int bytes,
                                                 std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// ---- A box that a tensor map describes, from `row` and `column` on. `map` is a kernel parameter.

[[maybe_unused]] __device__ inline void CopyBox(std::uint32_t to, const void* map, int column,
                                                int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// ---- To the same place in every block of `blocks` of the cluster (bit r: rank r). Each block's
// own barrier counts the bytes.

[[maybe_unused]] __device__ inline void CopyBulkToAll(std::uint32_t to, const void* from, int bytes,
                                                      std::uint32_t barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}
[[maybe_unused]] __device__ inline void CopyBoxToAll(std::uint32_t to, const void* map, int column,
                                                     int row, std::uint32_t barrier,
                                                     std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

#endif

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_BULK_COPY_CUH_

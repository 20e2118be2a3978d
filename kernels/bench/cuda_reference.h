// Inputs and float64 checks in device memory, for tensors that the host would take minutes over.

#ifndef NORMD_KERNELS_BENCH_CUDA_REFERENCE_H_
#define NORMD_KERNELS_BENCH_CUDA_REFERENCE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm::bench {

// Enqueues the fill of `bytes` of device memory with chunks of a pool (data.h) in device memory.
cudaError_t FillFromPool(const void* pool, DType dtype, std::uint64_t seed, std::size_t bytes,
                         void* x, cudaStream_t stream);

struct DeviceError {
  // Largest |y - reference| / max(1, |reference|), for a norm max(its reciprocal, |reference|);
  // infinite for a NaN.
  double max_error = 0;
  std::int64_t elements = 0;
};

// Computes a segment of device memory in float64, with two passes, and compares every element of
// segment.y with it. Must not run in place: x is read again. Parameters are in device memory too.
// Blocks.
cudaError_t MaxErrorOnDevice(const NormSpec& spec, const NormParams& params, const Segment& segment,
                             cudaStream_t stream, DeviceError* out);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CUDA_REFERENCE_H_

// The fused layer in float64 on the device, for sizes that the host would take minutes over.

#ifndef NORMD_KERNELS_BENCH_CUDA_LINEAR_REFERENCE_H_
#define NORMD_KERNELS_BENCH_CUDA_LINEAR_REFERENCE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear_norm.h"

namespace normd::norm::bench {

struct LinearError {
  double relative = 0;  // ||out - reference|| / ||reference|| over all elements compared.
  double max = 0;       // Largest |out - reference|.
  // Compared samples: at most 16, at even distances, including the first.
  std::int64_t samples = 0;
};

// Computes samples of a segment in float64 and compares segment.out with them; a NaN in only one of
// the two makes both errors infinite. Everything lies in device memory. segment.y must not be
// segment.out. There is no activation. Blocks.
cudaError_t LinearErrorOnDevice(const LinearNormSpec& spec, const LinearNormParams& params,
                                const LinearNormSegment& segment, cudaStream_t stream,
                                LinearError* out);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CUDA_LINEAR_REFERENCE_H_

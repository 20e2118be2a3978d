// The fused layer on a CUDA device.

#ifndef NORMD_KERNELS_BENCH_CUDA_LINEAR_H_
#define NORMD_KERNELS_BENCH_CUDA_LINEAR_H_

#include <cuda_runtime_api.h>

#include "kernels/bench/linear.h"
#include "kernels/cuda/plan.h"

namespace normd::norm::bench {

// Device::MeasureLinear for CUDA, on the current device. settings.strategy names a tile.
Status MeasureLinearOnCuda(const Settings& settings, const cuda::DeviceLimits& limits,
                           cudaStream_t stream, const LinearCase& c, LinearMeasurement* out);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CUDA_LINEAR_H_

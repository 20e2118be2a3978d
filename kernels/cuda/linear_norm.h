// The fused layer on CUDA: see kernels/linear_norm.h for what it computes and
// kernels/cuda/README.md for how. All calls are thread-safe; none allocates device memory or
// synchronises, so all can be captured into a CUDA graph.

#ifndef NORMD_KERNELS_CUDA_LINEAR_NORM_H_
#define NORMD_KERNELS_CUDA_LINEAR_NORM_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/strategy.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cuda {

// The bytes of device memory for the weights and the bias in the form that LinearNorm reads: 4 per
// weight for kFloat32 and kFloat32Strict, 2 for the others on compute capability 9.0. The form
// depends on in_features, out_features and precision, and on the device, but not on the dtype.
std::size_t LinearWeightBytes(const LinearNormSpec& spec, const DeviceLimits& limits);

// Enqueues the preparation of `params` (device memory) into `prepared` (device memory of
// LinearWeightBytes, aligned to 256 bytes). `params` are not needed once that work is done. Errors,
// before anything is enqueued: InvalidArgument as ValidateLinearNorm says; Unsupported for 2^30
// features or more; OutOfMemory if `bytes` is too small. DeviceError: a launch was refused.
Status PrepareLinearWeights(const LinearNormSpec& spec, const LinearNormParams& params,
                            const DeviceLimits& limits, void* prepared, std::size_t bytes,
                            cudaStream_t stream);

struct LinearLaunchOptions {
  cudaStream_t stream = nullptr;
  // Device memory aligned to 256 bytes, in any state. Borrowed until the work enqueued by the call
  // is done. Calls that can overlap on the device must not share it.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  LinearTile forced = LinearTile::kAuto;  // For tests and measurements.
};

// The workspace for batches of up to `samples` samples in all; monotonic in samples, and constant
// from kLinearChunkSamples on: about (8 I + 4 F) bytes for each of at most 1024 samples.
std::size_t LinearWorkspaceBytes(const LinearNormSpec& spec, std::int64_t samples,
                                 const DeviceLimits& limits, LinearTile forced = LinearTile::kAuto);

// Enqueues the layer for a batch in device memory on options.stream and returns. The current device
// is the one of the stream and of `limits`, which QueryDeviceLimits (normalize.h) has read.
// `prepared` comes from PrepareLinearWeights with the same spec; only dtype, eps and epilogue may
// differ. `segments` themselves are host memory and are not needed after the call returns.
// Accumulation: float32. Errors of z relative to the sum of its products' magnitudes, as
// kernels/cuda/README.md derives them: kFloat32 about that of a float32 sum; kTf32 2^-10; kBFloat16
// 2^-7. A sample's bits are the same in every batch and at every place, on every launch and
// alignment.
// Errors, all before anything is enqueued: InvalidArgument as ValidateLinearNorm and
// ValidateLinearNormSegments say; Unsupported as above; OutOfMemory if the workspace is too small.
// DeviceError: a launch was refused; earlier launches of the call still run.
Status LinearNorm(const LinearNormSpec& spec, const void* prepared,
                  const LinearNormSegment* segments, std::size_t count, const DeviceLimits& limits,
                  const LinearLaunchOptions& options);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_NORM_H_

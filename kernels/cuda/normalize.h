// The CUDA backend. All calls are thread-safe; none allocates device memory or synchronises, so all
// but QueryDeviceLimits can be captured into a CUDA graph.

#ifndef NORMD_KERNELS_CUDA_NORMALIZE_H_
#define NORMD_KERNELS_CUDA_NORMALIZE_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/plan.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// Reads the limits of CUDA device `device` and loads the kernels that its plans use. Call it once
// per process and device, before Normalize, and keep the result: it takes milliseconds. The current
// device stays the same. Errors: DeviceError.
Status QueryDeviceLimits(int device, DeviceLimits* limits);

struct LaunchOptions {
  cudaStream_t stream = nullptr;
  // Device memory aligned to 256 bytes, prepared by InitWorkspace. Borrowed until the work enqueued
  // by the call is done. Calls on one stream may share it; calls that can overlap on the device
  // (different streams, parallel graph branches) must not.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // The workspace is in any state: its preparation is enqueued too, if the batch's kernels need it.
  bool new_workspace = false;
  Strategy forced = Strategy::kAuto;  // For tests and measurements.
};

// The workspace that Normalize needs for this batch; monotonic in samples and in segments. With
// Strategy::kAuto and contiguous rows it stays under kWorkspaceBase plus 1/256 of the batch's bytes
// from compute capability 8.0 on. Interleaved rows of many channels and few positions, and factors
// of each sample's channels, need up to an eighth, and more if a sample has fewer positions than
// partial statistics. Checks counts as ValidateSegments does; does not read data pointers.
std::size_t WorkspaceBytes(const NormSpec& spec, const Segment* segments, std::size_t count,
                           const DeviceLimits& limits, Strategy forced = Strategy::kAuto);

inline constexpr std::size_t kWorkspaceBase = 64 << 10;

// Enqueues the preparation of `bytes` of new memory as a workspace. Needed once: every Normalize
// that completes leaves the workspace ready for the next, of any spec and plan.
Status InitWorkspace(void* workspace, std::size_t bytes, cudaStream_t stream);

// Enqueues the normalization of a batch in device memory on options.stream and returns. Segments
// with parameters of their own get launches of their own. The current device is the one of the
// stream and of `limits`. `segments` and `params` themselves are host memory and are not needed
// after the call returns; the device memory they point to must live, and x stay unchanged, until
// the enqueued work is done.
// Accumulation: float32 for float32, float16 and bfloat16 (per lane relative to an element of the
// row, merged as count, mean to twice the precision, and M2), float64 for float64. Deviations whose
// squares overflow the accumulation type give NaN. A row's bits are the same in every batch, on
// every launch and at every alignment.
// Errors, all before anything is enqueued: InvalidArgument as ValidateSpec and ValidateSegments
// say; OutOfMemory if the workspace is too small; Unsupported if options.forced cannot compute a
// row, and for 2^31 or more groups, or rows of a sample. DeviceError: a launch was refused; earlier
// launches of the call still run.
Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                 std::size_t count, const DeviceLimits& limits, const LaunchOptions& options);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_NORMALIZE_H_

// The interface of the kernel families of this folder to the dispatch in normalize.cc. Internal.

#ifndef NORMD_KERNELS_CUDA_LAUNCH_H_
#define NORMD_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"
#include "kernels/sample_range.h"

namespace normd::norm::cuda {

// The head of every workspace: zero between launches. Kernels whose blocks exchange partials use it
// and leave it zeroed. The scratch after it may be in any state.
inline constexpr std::size_t kExchangeBytes = 48 << 10;

// One family's part of a batch: valid spec, params and segments, all segments non-empty and with
// plans equal to `plan`. Borrowed for the call; the families copy what their kernels need into
// kernel parameters.
struct Launch {
  const NormSpec& spec;
  const NormParams& params;
  const DeviceLimits& limits;
  Plan plan;
  const Segment* segments;
  std::size_t count;
  cudaStream_t stream;
  void* exchange;  // kExchangeBytes
  void* scratch;   // The size is the family's ScratchBytes; aligned to 256.
  // The gaps in each segment, and the rows between two; of warp and block rows and of stages.
  SampleGaps gaps = {};
  std::int64_t gap_rows = 1;
};

// DeviceError with `what` and CUDA's name for the error, or OK.
inline Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  return Status(StatusCode::kDeviceError, std::string(what) + ": " + cudaGetErrorName(error) +
                                              " (" + cudaGetErrorString(error) + ")");
}

// The families. Each enqueues on launch.stream and returns the first launch error.
Status LaunchWarpRows(const Launch& launch);
Status LaunchBlockRows(const Launch& launch);
Status LaunchClusterRows(const Launch& launch);
Status LaunchGridRows(const Launch& launch);
Status LaunchSplitRows(const Launch& launch);
Status LaunchChannelsLast(const Launch& launch);
Status LaunchElementwise(const Launch& launch);

// Lets kernels use the current device's shared memory, whose limits are given, and its clusters.
cudaError_t PrepareGridRows(const DeviceLimits& limits);
cudaError_t PrepareClusterRows(const DeviceLimits& limits);

// Fills in limits->resident_clusters.
cudaError_t CountResidentClusters(DeviceLimits* limits);

// The scratch that one launch over these segments needs; monotonic in samples and in segments.
std::size_t SplitScratchBytes(const NormSpec& spec, const Segment* segments, std::size_t count);
std::size_t ChannelsLastScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                                     const Plan& plan, const Segment* segments, std::size_t count);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LAUNCH_H_

// The three ways to compute channels-last rows. Internal.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_CHANNELS_LAST_H_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_CHANNELS_LAST_H_

#include <cstddef>

#include "kernels/cuda/channels_last/strip_plan.h"
#include "kernels/cuda/launch.h"

namespace normd::norm::cuda {

// All segments of the launch must have `plan`, except for its vectors and shared bytes, which are
// the largest of the segments'. The grid's scratch is ChannelsLastGridScratchBytes.
Status LaunchChannelsLastCluster(const Launch& launch, const StripPlan& plan);
Status LaunchChannelsLastGrid(const Launch& launch, const StripPlan& plan);
std::size_t ChannelsLastGridScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                                         const StripPlan& plan, std::int64_t samples);

// Takes any segments. The scratch bytes are monotonic in samples and in segments.
Status LaunchChannelsLastSplit(const Launch& launch);
std::size_t ChannelsLastSplitScratchBytes(const NormSpec& spec, const Segment* segments,
                                          std::size_t count);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_CHANNELS_LAST_H_

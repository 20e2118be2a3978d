// The stages that the specialised kernels do not have. Internal.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGES_H_
#define NORMD_KERNELS_CUDA_STAGES_STAGES_H_

#include "kernels/cuda/launch.h"
#include "kernels/cuda/stages/stage_plan.h"

namespace normd::norm::cuda {

// Lets kernels use the current device's shared memory, whose limits are given, and its clusters.
// From 8.0 on.
cudaError_t PrepareStages(const DeviceLimits& limits);

// Segments of Lowering::kStages, whose plans are PlanStages'.
Status LaunchStages(const Launch& launch);

// mean_out and rstd_out of segments that have either; nothing else. The spec is that of the tensors
// as the caller gave them, with its own statistics and no stage before them.
Status LaunchStatistics(const Launch& launch);

// The same for InstanceNorm's rows, but with sqrt(variance + eps) in rstd_out.
Status LaunchDeviations(const Launch& launch);

// One segment of Lowering::kSampleAffine.
struct SampleAffineLaunch {
  const NormSpec& spec;
  const NormParams& params;
  const DeviceLimits& limits;
  const Segment& segment;
  cudaStream_t stream;
  void* factors;  // [samples, channels] in the accumulation type, then as many offsets.
};
std::size_t FactorsBytes(const NormSpec& spec, std::int64_t samples);
// Enqueues the computation of the factors and offsets, which replace gamma and beta.
Status LaunchSampleAffine(const SampleAffineLaunch& launch);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGES_H_

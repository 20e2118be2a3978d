// Selects the kernel that computes a row: a pure function of the row and the device.
//
// The plan depends on the spec, on which parameters there are, on a segment's spatial size and on
// the device's limits, and on nothing else: not on the number of samples, the other segments or
// addresses. So a sample gets the same kernel, cut in the same way, in every batch.
// kernels/cuda/README.md explains the strategies and shows what each costs.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_PLAN_H_
#define NORMD_KERNELS_CUDA_PLAN_H_

#include <cstdint>

#include "kernels/cuda/stages/stage_plan.h"
#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// Chooses how rows of `spec` with this `spatial` size are computed. `forced` overrides the choice
// where the strategy can compute the row at all; for rows that interleave, kCluster, kGrid and
// kSplit say what holds the strips. The spec must be valid, spatial >= 1, and there is no input
// bias. Errors: Unsupported if the forced strategy cannot compute this row on this device; with
// kAuto there is always a plan.
Status MakePlan(const NormSpec& spec, std::int64_t spatial, const PresentParams& params,
                const DeviceLimits& limits, Strategy forced, Plan* plan);
// The same without any parameters.
inline Status MakePlan(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                       Strategy forced, Plan* plan) {
  return MakePlan(spec, spatial, PresentParams(), limits, forced, plan);
}

// The same for a segment with a given lowering, with the spec and the spatial size of LowerRows.
Status MakeLoweredPlan(const NormSpec& spec, Lowering lowering, std::int64_t spatial,
                       const PresentParams& params, const DeviceLimits& limits, Strategy forced,
                       Plan* plan);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_PLAN_H_

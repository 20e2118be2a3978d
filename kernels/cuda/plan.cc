#include "kernels/cuda/plan.h"

#include <string>

#include "kernels/cuda/channels_last/strip_plan.h"
#include "kernels/cuda/rows/row_plan.h"

namespace normd::norm::cuda {
namespace {

// Where the rows of a segment are contiguous runs.
bool RowsAreContiguous(const NormSpec& spec, std::int64_t spatial) {
  return spec.layout == Layout::kChannelsFirst || spatial == 1 || spec.channels == 1 ||
         spec.rows == Rows::kPosition;
}

}  // namespace

Status MakeLoweredPlan(const NormSpec& spec, Lowering lowering, std::int64_t spatial,
                       const PresentParams& params, const DeviceLimits& limits, Strategy forced,
                       Plan* plan) {
  *plan = Plan();
  if (lowering == Lowering::kStages) {
    PlanStages(spec, spatial, params, limits, plan);
  } else if (spec.statistics == Statistics::kGiven) {
    plan->strategy = Strategy::kElementwise;
  } else if (!RowsAreContiguous(spec, spatial)) {
    if (!PlanChannelsLast(spec, spatial, limits, forced, plan)) *plan = Plan();
    if (plan->strips == forced) return Status();
  } else if (!PlanRows(spec, spatial, params.channel_bytes, limits,
                       lowering == Lowering::kModulated ? Strategy::kBlock : forced, plan)) {
    *plan = Plan();
  }
  if (forced != Strategy::kAuto && forced != plan->strategy) {
    return Status(StatusCode::kUnsupported,
                  std::string("strategy: ") + Name(forced) + " cannot compute rows of " +
                      std::to_string(RowLength(spec, spatial)) + " " + Name(spec.dtype) +
                      " elements of this spec on this device");
  }
  return Status();
}

Status MakePlan(const NormSpec& spec, std::int64_t spatial, const PresentParams& params,
                const DeviceLimits& limits, Strategy forced, Plan* plan) {
  const Lowering lowering = LowerSegment(spec, spatial, params);
  const LoweredRows rows = LowerRows(spec, lowering, 1, spatial);
  return MakeLoweredPlan(rows.spec, lowering, rows.spatial, params, limits, forced, plan);
}

}  // namespace normd::norm::cuda

// The kernels of this folder, as stages.cu launches them.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stages/stage_batch.cuh"

namespace normd::norm::cuda {

inline constexpr int kTeamThreads = 256;  // In blocks of several teams.

// Launches kernel(batch, width, warps, more...) with a StageTeam of the plan's size for each row.
template <typename Kernel, typename... More>
cudaError_t LaunchTeams(const Launch& launch, const StageBatch& batch, Kernel kernel,
                        const More&... more) {
  const Plan& plan = launch.plan;
  const int width = plan.warps == 0 ? plan.lanes_per_row : kLanes;
  const auto rows = static_cast<unsigned>(plan.warps == 0 ? kTeamThreads / width : 1);
  const auto threads = static_cast<unsigned>(plan.warps == 0 ? kTeamThreads : plan.warps * kLanes);
  return LaunchOverlapping(launch.limits, launch.stream, kernel, (batch.rows + rows - 1) / rows,
                           threads, batch, width, plan.warps, more...);
}

// Takes any batch of segments whose plans are the launch's.
cudaError_t LaunchGeneralRows(const Launch& launch, const StageBatch& batch);

// Contiguous rows in registers. TakesRegisterRows: whether it takes the batch's rows.
bool TakesRegisterRows(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchRegisterRows(const Launch& launch, const StageBatch& batch);
// Such rows with StageBatch::scaled_first.
cudaError_t LaunchQuantizedRows(const Launch& launch, const StageBatch& batch);

// Rows in shared memory, over several blocks if they are long. TakesSlicedRows depends only on the
// row and the kind of stages: such rows are always summed in this kernel's order.
bool TakesSlicedRows(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchSlicedRows(const Launch& launch, const StageBatch& batch);
// One-block rows in the order of register_rows.cu, at addresses or with parameters that it does not
// take.
bool TakesOtherBlockRows(const Launch& launch, const StageBatch& batch);
cudaError_t PrepareSlicedRows(const DeviceLimits& limits);

// Whether all addresses in steps of `bytes` are multiples of 16.
inline bool IsAligned(const void* data, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes)) %
             kVectorBytes ==
         0;
}
// Whether 16-byte loads can fetch gamma or beta from each row's first channel on.
inline bool IsPackedParam(const StageBatch& batch, const ParamVector& param) {
  if (param.data == nullptr) return true;
  if (param.dtype != batch.dtype && param.dtype != DType::kFloat32) return false;
  return IsAligned(param.data,
                   batch.channels_per_group * static_cast<std::int64_t>(SizeOf(param.dtype)));
}

// Rows that are not whole vectors. TakesRaggedRows does not depend on addresses: such rows are
// always summed in this kernel's order, but for statistics alone.
bool TakesRaggedRows(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchRaggedRows(const Launch& launch, const StageBatch& batch);

// Rows of positions, channels first, in tiles. TakesPositions does not depend on addresses: the
// rows of such specs are always summed in this kernel's order.
bool TakesPositions(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchPositions(const Launch& launch, StageBatch batch);
cudaError_t PreparePositions(const DeviceLimits& limits);
// Those of Plan::slabs, with StageSegment::groups.
cudaError_t LaunchPositionSlabs(const Launch& launch, StageBatch batch);
cudaError_t PreparePositionSlabs(const DeviceLimits& limits);

// Rows of RowPlaces::kMixedRuns in tiles. TakesMixedRuns does not depend on addresses: the rows
// of such specs are always summed in this kernel's order.
bool TakesMixedRuns(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchMixedRuns(const Launch& launch, StageBatch batch);
cudaError_t PrepareMixedRuns(const DeviceLimits& limits);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_

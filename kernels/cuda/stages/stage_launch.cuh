// The kernels of this folder, as stages.cu launches them.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stages/stage_batch.cuh"

namespace normd::norm::cuda {

// Takes any batch of segments whose plans are the launch's.
cudaError_t LaunchAnyRows(const Launch& launch, const StageBatch& batch);

// Rows that lie together in registers. TakesLeanRows: whether the batch's can.
bool TakesLeanRows(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchLeanRows(const Launch& launch, const StageBatch& batch);

// Rows of positions, channels first, in tiles. TakesColumns does not look at addresses: the rows of
// such specs are summed in this kernel's order alone.
bool TakesColumns(const Launch& launch, const StageBatch& batch);
cudaError_t LaunchColumns(const Launch& launch, StageBatch batch);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_LAUNCH_CUH_

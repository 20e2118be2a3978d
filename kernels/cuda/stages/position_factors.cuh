// What the kernels of positions share: a position's statistics, and the factors of channels.

#ifndef NORMD_KERNELS_CUDA_STAGES_POSITION_FACTORS_CUH_
#define NORMD_KERNELS_CUDA_STAGES_POSITION_FACTORS_CUH_

#include "kernels/cuda/stages/stage_sums.cuh"

namespace normd::norm::cuda {

// A position's statistics, which its normalization replaces.
struct PositionSlot {
  float reference;  // Later the mean.
  float mean;       // Later rstd.
  float m2;         // Later the term for the mean's residue.
  float count;

  __device__ static PositionSlot Of(const Moments<float>& moments) {
    return {moments.reference, moments.mean, moments.m2, moments.count};
  }
  __device__ static PositionSlot Of(const RowScale<float>& scale, bool centered) {
    return {scale.mean, scale.rstd, centered ? -scale.residue * scale.rstd : 0, 0};
  }
  __device__ Moments<float> moments() const { return {reference, mean, m2, count}; }
};

// Fills in the factor and offset of `count` channels of a sample from `first` on. All threads of
// the block call it together.
__device__ inline void FillFactors(const StageBatch& batch, const StageSegment& segment,
                                   std::int64_t sample, std::int64_t first, int count,
                                   ChannelFactors<float>* factors) {
  const auto threads = static_cast<int>(blockDim.x);
  for (auto c = static_cast<int>(threadIdx.x); c < count; c += threads) {
    const std::int64_t channel = first + c;
    const std::int64_t of_sample = sample * batch.channels + channel;
    ChannelFactors<float> own = {1, 0};
    if (batch.gamma.data != nullptr) {
      own.factor = LoadParam(batch.gamma, channel, 0.0f) + batch.weight_offset.narrow;
    }
    own.offset = LoadParam(batch.beta, channel, 0.0f);
    if (batch.scale) {
      const ParamVector scale = {segment.scale, batch.dtype};
      const float by = batch.scale_offset.narrow + LoadParam(scale, of_sample, 0.0f);
      own.factor *= by;
      if (batch.beta.data != nullptr) own.offset *= by;
    }
    if (batch.shift) {
      const ParamVector shift = {segment.shift, batch.dtype};
      own.offset += LoadParam(shift, of_sample, 0.0f);
    }
    factors[c] = own;
  }
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_POSITION_FACTORS_CUH_

// Merges the partials of threads that share a position of a tile of positions.cu.

#ifndef NORMD_KERNELS_CUDA_STAGES_POSITIONS_MERGE_CUH_
#define NORMD_KERNELS_CUDA_STAGES_POSITIONS_MERGE_CUH_

#include "kernels/cuda/stages/positions_tile.cuh"

namespace normd::norm::cuda {

// The partials of a tile's positions in shared memory.
struct ColumnMerge {
  int positions;  // In a tile.
  int parts;      // Per position: each is one warp's share.
  int splits_of_part;

  __device__ ColumnMerge(const ColumnPlace& place, int per_vector)
      : positions(place.vectors * per_vector),
        parts(min(place.splits, kColumnWarps)),
        splits_of_part(place.splits / parts) {}
};

// Leaves a warp's share of its positions for the others.
template <typename T>
__device__ inline void PutPartials(const ColumnPlace& place,
                                   const Moments<float> (&moments)[kPerVector<T>],
                                   PositionSlot* slots) {
  constexpr int kCount = kPerVector<T>;
  const ColumnMerge merge(place, kCount);
  if (place.split % merge.splits_of_part != 0) return;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    slots[place.split / merge.splits_of_part * merge.positions + j * place.vectors + place.vector] =
        PositionSlot::Of(moments[j]);
  }
}

// Merges the partials of each position, and leaves its normalization in `scales`, which may be
// `slots`. Adjacent lanes share a position if there are more threads than positions.
template <typename T, int kWordBytes>
__device__ inline void MergePositions(const StageBatch& batch, const ColumnPlace& place,
                                      const PositionSlot* slots, PositionSlot* scales) {
  constexpr int kCount = kPerVector<T>;
  const ColumnMerge merge(place, kCount);
  const Statistics statistics = batch.statistics;
  const int lanes = max(1, min(kColumnThreads / merge.positions, merge.parts));
  const int own = static_cast<int>(threadIdx.x) & (lanes - 1);
  for (int at = static_cast<int>(threadIdx.x) / lanes; at < merge.positions;
       at += kColumnThreads / lanes) {
    Moments<float> all = slots[own * merge.positions + at].moments();
    for (int part = own + lanes; part < merge.parts; part += lanes) {
      all = MergeStatistics(statistics, all, slots[part * merge.positions + at].moments());
    }
    for (int offset = 1; offset < lanes; offset *= 2) {
      const Moments<float> other = {__shfl_down_sync(kAllLanes, all.reference, offset),
                                    __shfl_down_sync(kAllLanes, all.mean, offset),
                                    __shfl_down_sync(kAllLanes, all.m2, offset),
                                    __shfl_down_sync(kAllLanes, all.count, offset)};
      all = MergeStatistics(statistics, all, other);
    }
    if (own != 0) continue;
    const RowScale<float> scale = FinishStatistics(statistics, all, batch.eps);
    scales[at] = PositionSlot::Of(scale, statistics == Statistics::kMeanVariance);
    auto* const mean_out = static_cast<float*>(place.segment->mean_out);
    auto* const rstd_out = static_cast<float*>(place.segment->rstd_out);
    if (mean_out == nullptr && rstd_out == nullptr) continue;
    const auto own = PositionWords<T, kWordBytes>::Find(
        batch, *place.segment, place.tile, at / place.vectors, at % place.vectors, place.vectors);
    const std::int64_t spatial = place.segment->spatial;
    if (own.group >= place.segment->groups || own.position >= spatial) continue;
    const std::int64_t row = own.group * spatial + own.position;
    if (mean_out != nullptr) mean_out[row] = scale.mean;
    if (rstd_out != nullptr) rstd_out[row] = scale.rstd;
  }
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_POSITIONS_MERGE_CUH_

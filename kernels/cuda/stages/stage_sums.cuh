// Statistics of a row whose elements come as values: for a lane, and for the team that shares a
// row.
//
// The sums are those of device/moments.cuh. Where a row has no mean, Moments::m2 is the sum of
// squares or of absolutes, or the largest absolute. Which lane holds an element, and the order of
// all sums, follow from the element's place in the row and the plan alone.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/statistics.cuh"
#include "kernels/cuda/stages/stage_plan.h"
#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

// The threads that share a row: `width` lanes of a warp, or all warps of a team. Vector i of the
// row's first vectors * size() belongs to thread i % size(), and so on for the following ones.
//
// With kSeveral a block may have up to kMostTeams teams of warps, else one.
inline constexpr int kMostTeams = 4;
template <bool kSeveral = false>
struct StageTeam {
  int width;    // A power of two.
  int warps;    // 0: the row belongs to `width` lanes.
  int vectors;  // Vectors that a thread takes at once.
  int number;   // Number of the team in its block.
  int lane;     // Within the width.
  int warp;     // Within the team.
  int thread;   // Within the team.

  // The calling thread's team, from the plan. In a block either x counts the threads of one team of
  // warps and y the teams, or x counts the lanes of several teams.
  __device__ StageTeam(int row_width, int row_warps, int row_vectors)
      : width(row_width), warps(row_warps), vectors(row_vectors) {
    const int own = static_cast<int>(threadIdx.x);
    lane = own & (width - 1);
    warp = warps == 0 ? 0 : own / kLanes;
    thread = warps == 0 ? lane : own;
    number = warps == 0 ? own >> (31 - __clz(width)) : static_cast<int>(threadIdx.y);
  }
  __device__ int size() const { return warps == 0 ? width : warps * kLanes; }
  // The team's first place for exchanges, among those of all teams of a block.
  __device__ int first_warp() const { return number * warps; }
  // A barrier of a team of warps. Barrier numbers are constants: otherwise a block takes all 16.
  __device__ void Sync() const {
    const int threads = warps * kLanes;
    switch (kSeveral ? number : 0) {
      case 0: asm volatile("bar.sync 0, %0;" ::"r"(threads) : "memory"); break;
      case 1: asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); break;
      case 2: asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory"); break;
      default: asm volatile("bar.sync 3, %0;" ::"r"(threads) : "memory"); break;
    }
  }
};

// The exchange between the warps of a block for a row. Rows alternate between two of them: between
// two uses of one, the team has met for the other.
template <typename Value>
struct WarpPartials {
  Value of_warp[kStageWarps];
};

// The sum over a whole warp.
__device__ inline int SumOfWarp(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  return GroupSum(value, kLanes);
#endif
}

// Adds the first `present` elements to the statistics of rows without a mean.
template <typename T, bool kAbsolutes>
__device__ inline void AddUncentered(Statistics statistics,
                                     const Accumulator<T> (&values)[kPerVector<T>], int present,
                                     Accumulator<T> (&squares)[2],
                                     MagnitudeBits<Accumulator<T>>* largest) {
  if (kAbsolutes && statistics == Statistics::kLargestAbsolute) {
    *largest = LargestMagnitude(values, present, *largest);
    return;
  }
  if (kAbsolutes && statistics == Statistics::kSumOfAbsolutes) {
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) {
      if (i < present) squares[i % 2] += fabs(values[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) {
    if (i < present) squares[i % 2] = Fma(values[i], values[i], squares[i % 2]);
  }
}

template <typename A>
__device__ inline Moments<A> UncenteredMoments(Statistics statistics, const A (&squares)[2],
                                               MagnitudeBits<A> largest, int count) {
  if (statistics != Statistics::kLargestAbsolute) {
    return MomentsOfSums(A(0), A(0), squares[0] + squares[1], count, false);
  }
  Moments<A> result;
  result.m2 = FromMagnitude(largest);
  result.count = static_cast<A>(count);
  return result;
}

// The statistics of kVectors vectors of a thread: get(i, values) gives the elements of vector i, of
// which the first present(i) exist. Without kAbsolutes the statistics are of squares.
template <typename T, int kVectors, bool kAbsolutes = true, typename Get, typename Present>
__device__ inline Moments<Accumulator<T>> MomentsOfVectors(Statistics statistics, Get get,
                                                           Present present) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  A values[kCount];
  A sums[2] = {0, 0};
  A squares[2] = {0, 0};
  int count = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) count += present(i);
  if (statistics == Statistics::kMeanVariance) {
    A reference = 0;
    if constexpr (kMeanReference<T>) {
      A sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (present(i) == 0) continue;
        get(i, values);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          if (j < present(i)) sum[j % 2] += values[j];
        }
      }
      if (count > 0) reference = Quotient(sum[0] + sum[1], static_cast<A>(count));
    } else {
      get(0, values);
      reference = present(0) > 0 ? MeanOfHead<T>(values, present(0)) : A(0);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (present(i) == 0) continue;
      get(i, values);
      AddDeviations<T>(values, present(i), reference, i % 2, sums, squares);
    }
    return MomentsOfSums(reference, sums[0] + sums[1], squares[0] + squares[1], count, true);
  }
  MagnitudeBits<A> largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (present(i) == 0) continue;
    get(i, values);
    AddUncentered<T, kAbsolutes>(statistics, values, present(i), squares, &largest);
  }
  return UncenteredMoments<A>(statistics, squares, largest, count);
}

// Merges the sets that up to kWidth warps of a team have left, `elements` in all.
template <int kWidth, typename A, typename Team>
__device__ inline Moments<A> MergeWarpsOfTeam(Statistics statistics, A elements, const Team& team,
                                              const WarpPartials<Moments<A>>& partials) {
  const int other = team.lane % kWidth;
  const Moments<A> partial =
      other < team.warps ? partials.of_warp[team.first_warp() + other] : Moments<A>();
  return MergeStatistics(statistics, partial, elements, kWidth);
}

// Merges a team's sets of a row of `elements`, `count` per warp; every thread gets the result. All
// threads of the team call it together.
template <typename A, typename Team>
__device__ inline Moments<A> MergeTeam(Statistics statistics, const Moments<A>& own, A count,
                                       A elements, const Team& team,
                                       WarpPartials<Moments<A>>& partials) {
  if (team.warps == 0) {
    // With a constant width this takes a third of the instructions.
    return team.width == kLanes ? MergeStatistics(statistics, own, elements, kLanes)
                                : MergeStatistics(statistics, own, elements, team.width);
  }
  const Moments<A> run = MergeStatistics(statistics, own, count, kLanes);
  if (team.lane == 0) partials.of_warp[team.first_warp() + team.warp] = run;
  team.Sync();
  constexpr int kFewWarps = 8;
  return team.warps <= kFewWarps ? MergeWarpsOfTeam<kFewWarps>(statistics, elements, team, partials)
                                 : MergeWarpsOfTeam<kLanes>(statistics, elements, team, partials);
}

// The largest magnitude in a team.
template <typename Bits, typename Team>
__device__ inline Bits LargestOfTeam(Bits own, const Team& team, WarpPartials<Bits>& partials) {
  own = LargestOfLanes(own, team.width);
  if (team.warps == 0) return own;
  if (team.lane == 0) partials.of_warp[team.first_warp() + team.warp] = own;
  team.Sync();
  return LargestOfLanes(
      team.lane < team.warps ? partials.of_warp[team.first_warp() + team.lane] : Bits{0}, kLanes);
}

// sqrt(variance + eps), for StageBatch::deviations.
template <typename A>
__device__ inline A DeviationOf(const Moments<A>& row, const Constant& eps) {
  const A variance = row.m2 / row.count;
  return sqrt((variance < 0 ? A(0) : variance) + eps.As<A>());
}

// mean_out and rstd_out of a row.
template <typename A>
__device__ inline void WriteStatistics(const StageBatch& batch, const StageRow& row,
                                       const Moments<A>& moments, const RowScale<A>& scale) {
  const StageSegment& segment = *row.segment;
  if (segment.mean_out != nullptr) static_cast<A*>(segment.mean_out)[row.number] = scale.mean;
  if (segment.rstd_out == nullptr) return;
  static_cast<A*>(segment.rstd_out)[row.number] =
      batch.deviations ? DeviationOf(moments, batch.eps) : scale.rstd;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_

// Statistics of a row whose elements come as values: of what a lane holds, and of the team that
// shares a row.
//
// The sums are those of device/moments.cuh. Where a row has no mean, Moments::m2 is the sum of
// squares or of absolutes, or the largest absolute. Which lane holds an element, and the order of
// all sums, follow from the element's place in the row and the plan alone.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/stages/stage_plan.h"
#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

// Who shares a row: `width` lanes of a warp, or all warps of a block. Vector i of the row's
// kStageVectors * size() first ones belongs to thread i % size(), and so on for those that follow.
struct StageTeam {
  int width;   // A power of two.
  int warps;   // 0: the row belongs to `width` lanes.
  int lane;    // Of the width.
  int warp;    // Of the team.
  int thread;  // Of the team.

  // The calling thread's, in blocks of `warps` warps, or of rows of `width` lanes each.
  __device__ StageTeam(int row_width, int row_warps) : width(row_width), warps(row_warps) {
    lane = static_cast<int>(threadIdx.x) & (width - 1);
    warp = warps == 0 ? 0 : static_cast<int>(threadIdx.x / kLanes);
    thread = warp * kLanes + lane;
  }
  __device__ int size() const { return warps == 0 ? width : warps * kLanes; }
};

// Elements [begin, begin + kPerVector<T>) of a thread: adds those that are `present`.
template <typename T>
class StageSums {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ explicit StageSums(A reference) : reference_(reference) {}

  // As LaneSums::Add.
  __device__ void AddCentered(const A (&elements)[kCount], int present, int pair) {
    A values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = i < present ? elements[i] - reference_ : A(0);
    if constexpr (kMeanReference<T>) {
      A sum = values[0] + values[1];
      A squares = Fma(values[1], values[1], values[0] * values[0]);
      if constexpr (kCount == 4) {
        sum += values[2] + values[3];
        squares += Fma(values[3], values[3], values[2] * values[2]);
      }
      sum_[pair] += sum;
      squares_[pair] += squares;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum_[i % 2] += values[i];
        squares_[i % 2] = Fma(values[i], values[i], squares_[i % 2]);
      }
    }
  }
  __device__ void AddSquares(const A (&elements)[kCount], int present) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < present) squares_[i % 2] = Fma(elements[i], elements[i], squares_[i % 2]);
    }
  }
  __device__ void AddAbsolutes(const A (&elements)[kCount], int present) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < present) squares_[i % 2] += fabs(elements[i]);
    }
  }

  __device__ Moments<A> Finish(int count, bool centered) const {
    return MomentsOfSums(reference_, sum_[0] + sum_[1], squares_[0] + squares_[1], count, centered);
  }

 private:
  const A reference_;
  A sum_[2] = {0, 0};
  A squares_[2] = {0, 0};
};

// The statistics of kStageVectors vectors of a thread: get(i, values) gives the elements of vector
// i, of which present(i) exist, those in front. Without kAbsolutes the statistics are of squares.
template <typename T, bool kAbsolutes = true, typename Get, typename Present>
__device__ inline Moments<Accumulator<T>> MomentsOfVectors(Statistics statistics, Get get,
                                                           Present present) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  A values[kCount];
  int count = 0;
#pragma unroll
  for (int i = 0; i < kStageVectors; ++i) count += present(i);
  if (statistics == Statistics::kMeanVariance) {
    A reference = 0;
    if constexpr (kMeanReference<T>) {
      A sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kStageVectors; ++i) {
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
      reference = present(0) > 0 ? values[0] : A(0);
    }
    StageSums<T> sums(reference);
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) {
      if (present(i) == 0) continue;
      get(i, values);
      sums.AddCentered(values, present(i), i % 2);
    }
    return sums.Finish(count, true);
  }
  if (kAbsolutes && statistics == Statistics::kLargestAbsolute) {
    MagnitudeBits<A> largest = 0;
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) {
      if (present(i) == 0) continue;
      get(i, values);
      largest = LargestMagnitude(values, present(i), largest);
    }
    Moments<A> result;
    result.m2 = FromMagnitude(largest);
    result.count = static_cast<A>(count);
    return result;
  }
  StageSums<T> sums(A(0));
#pragma unroll
  for (int i = 0; i < kStageVectors; ++i) {
    if (present(i) == 0) continue;
    get(i, values);
    if (kAbsolutes && statistics == Statistics::kSumOfAbsolutes) {
      sums.AddAbsolutes(values, present(i));
    } else {
      sums.AddSquares(values, present(i));
    }
  }
  return sums.Finish(count, false);
}

// Of two sets of a thread, the first of which comes earlier in the row.
template <typename A>
__device__ inline Moments<A> MergeStatistics(Statistics statistics, const Moments<A>& a,
                                             const Moments<A>& b) {
  if (statistics == Statistics::kMeanVariance) return Merge(a, b);
  Moments<A> merged;
  merged.count = a.count + b.count;
  merged.m2 = statistics == Statistics::kLargestAbsolute
                  ? FromMagnitude(max(Magnitude(a.m2), Magnitude(b.m2)))
                  : a.m2 + b.m2;
  return merged;
}

// Of what the lanes of a group of `width` hold, `count` elements in all.
template <typename A>
__device__ inline Moments<A> MergeStatistics(Statistics statistics, const Moments<A>& own, A count,
                                             int width) {
  if (statistics == Statistics::kLargestAbsolute) {
    Moments<A> merged;
    merged.count = count;
    merged.m2 = FromMagnitude(LargestOfLanes(Magnitude(own.m2), width));
    return merged;
  }
  return MergeLanes(own, count, width, statistics == Statistics::kMeanVariance);
}

// Of what a team holds of a row of `elements`; every thread gets the result. All threads of the
// block call it together.
template <typename A>
__device__ inline Moments<A> MergeTeam(Statistics statistics, const Moments<A>& own, A elements,
                                       const StageTeam& team, Moments<A> (&partials)[kStageWarps]) {
  if (team.warps == 0) return MergeStatistics(statistics, own, elements, team.width);
  // Sums that have no mean need no count on their way.
  const A count = statistics == Statistics::kMeanVariance ? GroupSum(own.count, kLanes) : A(1);
  const Moments<A> run = MergeStatistics(statistics, own, count, kLanes);
  if (team.lane == 0) partials[team.warp] = run;
  __syncthreads();
  const Moments<A> partial = team.lane < team.warps ? partials[team.lane] : Moments<A>();
  return MergeStatistics(statistics, partial, elements, kLanes);
}

// The largest magnitude that a team holds.
template <typename Bits>
__device__ inline Bits LargestOfTeam(Bits own, const StageTeam& team,
                                     Bits (&partials)[kStageWarps]) {
  own = LargestOfLanes(own, team.width);
  if (team.warps == 0) return own;
  if (team.lane == 0) partials[team.warp] = own;
  __syncthreads();
  return LargestOfLanes(team.lane < team.warps ? partials[team.lane] : Bits{0}, kLanes);
}

// What a row is normalized by.
template <typename A>
__device__ inline RowScale<A> FinishStatistics(Statistics statistics, const Moments<A>& row,
                                               double eps) {
  if (statistics <= Statistics::kMeanSquare) return FinishRow(row, eps);
  const A norm = statistics == Statistics::kRootOfSquares ? sqrt(row.m2) : row.m2;
  const A least = static_cast<A>(eps);
  RowScale<A> scale;
  scale.rstd = A(1) / (norm < least ? least : norm);
  return scale;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_SUMS_CUH_

// Statistics of a row: lanes sum, groups merge.
//
// A lane sums its elements and their squares relative to a reference among them, so that a large
// mean cancels nothing: its first element where results have 16 bits, else the mean of what it
// holds in registers, so that an outlier in front does not enlarge the rounding of all others.
// Partials are (reference, mean relative to it, M2 = sum of squared deviations, count). A merge
// takes the group's first reference for all, averages, and sums the deviations from that average,
// so the mean keeps the relative accuracy of the deviations, not of the values. For
// Statistics::kMeanSquare the reference is zero and M2 is the plain sum of squares.
//
// Every merge is a butterfly over a fixed set of lanes: no atomics, one order, the same bits
// always.

#ifndef NORMD_KERNELS_CUDA_DEVICE_MOMENTS_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_MOMENTS_CUH_

#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

template <typename A>
struct Moments {
  A reference = 0;
  A mean = 0;  // Minus the reference.
  A m2 = 0;
  A count = 0;  // A whole number; counts over 2^24 are rounded, by less than the sums are.
};

// a + b, and what its rounding lost (Knuth).
template <typename A>
__device__ inline A TwoSum(A a, A b, A* residue) {
  const A sum = a + b;
  const A back = sum - a;
  *residue = (a - (sum - back)) + (b - back);
  return sum;
}

template <typename A>
__device__ inline A GroupSum(A value, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// A quotient to within two units in the last place, for counts of elements.
__device__ inline float Quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double Quotient(double a, double b) { return a / b; }

// Whether the reference is a mean, which takes another pass over the elements.
template <typename T>
inline constexpr bool kMeanReference = sizeof(T) >= 4;

template <typename T>
__device__ inline Accumulator<T> FirstElement(const Vector& vector) {
  Accumulator<T> values[kPerVector<T>];
  Unpack<T>(vector, values);
  return values[0];
}

// Adds the first `present` elements of a vector to sum[0] and sum[1] in turn.
template <typename T>
__device__ inline void AddElements(const Vector& vector, int present, Accumulator<T> (&sum)[2]) {
  Accumulator<T> values[kPerVector<T>];
  Unpack<T>(vector, values);
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) {
    if (i < present) sum[i % 2] += values[i];
  }
}

// Sums a lane's vectors in the order of the calls, relative to a reference.
template <typename T>
class LaneSums {
 public:
  using A = Accumulator<T>;

  __device__ explicit LaneSums(A reference) : reference_(reference) {}

  // Adds the first `present` elements of a vector to one of two pairs of sums, 0 or 1, a constant
  // at best. Where the reference is a mean, elements are added in pairs of pairs: sums of equal
  // elements are then exact, and a constant row loses nothing.
  __device__ void Add(const Vector& vector, int present = kCount, int pair = 0) {
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = i < present ? values[i] - reference_ : A(0);
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

  // `count` is the number of elements added.
  __device__ Moments<A> Finish(int count, bool centered) const {
    Moments<A> result;
    if (count == 0) return result;
    result.count = static_cast<A>(count);
    result.m2 = squares_[0] + squares_[1];
    if (!centered) return result;
    const A sum = sum_[0] + sum_[1];
    const A mean = Quotient(sum, result.count);
    result.m2 = Fma(-sum, mean, result.m2);
    result.reference = TwoSum(reference_, mean, &result.mean);
    return result;
  }

 private:
  static constexpr int kCount = kPerVector<T>;
  const A reference_;
  A sum_[2] = {0, 0};
  A squares_[2] = {0, 0};
};

// Merges what each lane of a group of `width` lanes holds, `count` elements in all; every lane gets
// the result. Lane 0 must hold elements if any lane does. All 32 lanes call it together. Sums that
// are not `centered` have no mean to merge, which is most of the work.
template <typename A>
__device__ inline Moments<A> MergeLanes(const Moments<A>& lane, A count, int width,
                                        bool centered = true) {
  Moments<A> group;
  if (count == 0) return group;
  if (!centered) {
    group.count = count;
    group.m2 = GroupSum(lane.m2, width);
    return group;
  }
  const A reference = __shfl_sync(kAllLanes, lane.reference, 0, width);
  const A offset = lane.count == 0 ? A(0) : (lane.reference - reference) + lane.mean;
  const A mean = Quotient(GroupSum(offset * lane.count, width), count);
  const A deviation = offset - mean;
  group.count = count;
  group.m2 = GroupSum(Fma(lane.count * deviation, deviation, lane.m2), width);
  group.reference = TwoSum(reference, mean, &group.mean);
  return group;
}

// What the elements of a row are scaled with: y = (x - mean - residue) * rstd.
template <typename A>
struct RowScale {
  A mean = 0;
  A residue = 0;  // x - mean is exact for x near the mean.
  A rstd = 0;
};

// 1 / sqrt(variance + eps), rounded to nearest or next to it: its error is that of a whole row. One
// step of Newton's on the residue of the approximate root, which takes eps as it is and not rounded
// into the sum.
__device__ inline float ReciprocalRoot(float variance, double eps) {
  float residue;
  const float sum = TwoSum(variance, static_cast<float>(eps), &residue);
  const float root = rsqrtf(sum);
  const float product = sum * root;
  const float lost = fmaf(residue, root, fmaf(sum, root, -product));
  const float step = fmaf(-lost, root, fmaf(-product, root, 1.0f));
  const float refined = fmaf(0.5f * root, step, root);
  return sum > 0 && sum < INFINITY ? refined : root;
}
__device__ inline double ReciprocalRoot(double variance, double eps) {
  return 1 / sqrt(variance + eps);
}

template <typename A>
__device__ inline RowScale<A> FinishRow(const Moments<A>& row, double eps) {
  const A variance = row.m2 / row.count;
  const A clamped = variance < 0 ? A(0) : variance;  // Rounding can leave -0; a NaN stays.
  RowScale<A> scale;
  scale.mean = TwoSum(row.reference, row.mean, &scale.residue);
  scale.rstd = ReciprocalRoot(clamped, eps);
  return scale;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_MOMENTS_CUH_

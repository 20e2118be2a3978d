// Statistics of a row: lanes sum, groups merge.
//
// A lane sums its elements and their squares relative to a reference among them, so that a large
// mean cancels nothing. The reference is a mean of elements of its first vector if results have 16
// bits, else of its elements in registers. Squares around the mean of k elements of n are at most n
// / k times those around the mean of all, so outliers in front cost a lane little. Partials are
// (reference, mean relative to it, M2 = sum of squared deviations, count). A merge takes the
// group's first reference for all, averages, and sums the deviations from that average, so the mean
// keeps the relative accuracy of the deviations, not of the values. For Statistics::kMeanSquare the
// reference is zero and M2 is the plain sum of squares.
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
  A mean = 0;  // Relative to the reference.
  A m2 = 0;
  A count = 0;  // A whole number; counts over 2^24 are rounded, by less than the sums are.
};

// a + b, and its rounding error (Knuth).
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

// The same for two values. Their shuffles overlap; those of two calls would follow one another.
template <typename A>
__device__ inline void GroupSums(A* a, A* b, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) {
    const A of_a = __shfl_xor_sync(kAllLanes, *a, offset);
    const A of_b = __shfl_xor_sync(kAllLanes, *b, offset);
    *a += of_a;
    *b += of_b;
  }
}

// A quotient to within two units in the last place, for counts of elements.
__device__ inline float Quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double Quotient(double a, double b) { return a / b; }

// The moments of `count` elements from the sums of their deviations from a reference and of the
// squares of these. If not `centered`, the sums are relative to zero.
template <typename A>
__device__ inline Moments<A> MomentsOfSums(A reference, A sum, A squares, int count,
                                           bool centered) {
  Moments<A> result;
  if (count == 0) return result;
  result.count = static_cast<A>(count);
  result.m2 = squares;
  if (!centered) return result;
  const A mean = Quotient(sum, result.count);
  // Around the rounded mean: its error counts squared.
  result.m2 = Fma(-mean, Fma(-result.count, mean, sum + sum), result.m2);
  result.reference = TwoSum(reference, mean, &result.mean);
  return result;
}

// Whether the reference is a mean, which takes another pass over the elements.
template <typename T>
inline constexpr bool kMeanReference = sizeof(T) >= 4;

// The mean of some of a vector's first elements, of which `present` exist: of every other one, or
// of two if not all exist. Exact if they are equal. A mean of more would hold more registers while
// the elements wait for their sums.
template <typename T>
__device__ inline float MeanOfHead(const float (&values)[kPerVector<T>], int present) {
  static_assert(kPerVector<T> == 8);
  if (present < 8) return present < 2 ? values[0] : (values[0] + values[1]) * 0.5f;
  return ((values[0] + values[2]) + (values[4] + values[6])) * 0.25f;
}
template <typename T>
__device__ inline float MeanOfHead(const Vector& vector, int present) {
  float values[kPerVector<T>];
  Unpack<T>(vector, values);
  return MeanOfHead<T>(values, present);
}

// The mean of two numbers, whose sum may overflow; exact if they are equal.
template <typename A>
__device__ inline A Middle(A a, A b) {
  return Fma(A(0.5), b, A(0.5) * a);
}

// The mean of each pair of elements, rounded to T: a reference for both.
template <typename T>
__device__ inline Vector Average(const Vector& a, const Vector& b) {
  if constexpr (sizeof(T) == 2) {
    using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
    const auto average = [](std::uint32_t x, std::uint32_t y) {
      const std::uint32_t half = std::is_same_v<T, Half> ? 0x38003800u : 0x3f003f00u;
      const Pair by = BitCast<Pair>(half);
      return BitCast<std::uint32_t>(__hfma2(BitCast<Pair>(y), by, __hmul2(BitCast<Pair>(x), by)));
    };
    return make_uint4(average(a.x, b.x), average(a.y, b.y), average(a.z, b.z), average(a.w, b.w));
  } else {
    Accumulator<T> values[kPerVector<T>], others[kPerVector<T>];
    Unpack<T>(a, values);
    Unpack<T>(b, others);
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) values[i] = Middle(values[i], others[i]);
    return Pack<T>(values);
  }
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

// Adds the first `present` values, less the reference, and their squares to one of two pairs of
// sums, 0 or 1, preferably a constant; 16-bit values go to both in turn. Elements are added in
// pairs, those of more than 16 bits in pairs of pairs: sums of equal elements are then exact, and a
// constant row loses nothing.
template <typename T>
__device__ inline void AddDeviations(const Accumulator<T> (&elements)[kPerVector<T>], int present,
                                     Accumulator<T> reference, int pair, Accumulator<T> (&sums)[2],
                                     Accumulator<T> (&squares)[2]) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  A values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = i < present ? elements[i] - reference : A(0);
  if constexpr (kMeanReference<T>) {
    A sum = values[0] + values[1];
    A square = Fma(values[1], values[1], values[0] * values[0]);
    if constexpr (kCount == 4) {
      sum += values[2] + values[3];
      square += Fma(values[3], values[3], values[2] * values[2]);
    }
    sums[pair] += sum;
    squares[pair] += square;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      sums[i / 2 % 2] += values[i] + values[i + 1];
      squares[0] = Fma(values[i], values[i], squares[0]);
      squares[1] = Fma(values[i + 1], values[i + 1], squares[1]);
    }
  }
}

// Sums a lane's vectors in the order of the calls, relative to a reference.
template <typename T>
class LaneSums {
 public:
  using A = Accumulator<T>;

  __device__ explicit LaneSums(A reference) : reference_(reference) {}

  // As AddDeviations.
  __device__ void Add(const Vector& vector, int present = kCount, int pair = 0) {
    A values[kCount];
    Unpack<T>(vector, values);
    AddDeviations<T>(values, present, reference_, pair, sum_, squares_);
  }

  // `count` is the number of elements added.
  __device__ Moments<A> Finish(int count, bool centered) const {
    return MomentsOfSums(reference_, sum_[0] + sum_[1], squares_[0] + squares_[1], count, centered);
  }

 private:
  static constexpr int kCount = kPerVector<T>;
  const A reference_;
  A sum_[2] = {0, 0};
  A squares_[2] = {0, 0};
};

// The merge of a set of partials, in two passes that any number of lanes can share: add up the
// terms of AddMean, divide by the elements of the set, and add up M2 around that mean. An empty
// partial adds nothing.
// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979.
template <typename A>
class SetMerge {
 public:
  // `reference` is that of a partial that is not empty. Means are relative to it.
  __device__ explicit SetMerge(A reference) : reference_(reference) {}

  __device__ A AddMean(const Moments<A>& partial, A sum) const {
    return Fma(Offset(partial), partial.count, sum);
  }
  __device__ A M2(const Moments<A>& partial, A mean) const {
    const A deviation = Offset(partial) - mean;
    return Fma(partial.count * deviation, deviation, partial.m2);
  }
  __device__ Moments<A> Result(A count, A mean, A m2) const {
    Moments<A> result;
    result.count = count;
    result.m2 = m2;
    result.reference = TwoSum(reference_, mean, &result.mean);
    return result;
  }

 private:
  __device__ A Offset(const Moments<A>& partial) const {
    return partial.count == 0 ? A(0) : (partial.reference - reference_) + partial.mean;
  }

  const A reference_;
};

// The merge of two partials, for sets in sequence. The result keeps the reference of the first,
// unless that is empty. Source: as above.
template <typename A>
__device__ inline Moments<A> Merge(const Moments<A>& a, const Moments<A>& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const A delta = (b.reference - a.reference) + (b.mean - a.mean);
  Moments<A> merged;
  merged.reference = a.reference;
  merged.count = a.count + b.count;
  const A weight = Quotient(b.count, merged.count);
  merged.mean = Fma(delta, weight, a.mean);
  merged.m2 = Fma(delta * delta * a.count, weight, a.m2 + b.m2);
  return merged;
}

// Merges the partials of a group of `width` lanes, `count` elements in all; every lane gets the
// result. Lane 0 must hold elements if any lane does. All 32 lanes call it together. Sums that are
// not `centered` have no mean to merge, which is most of the work.
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
  const SetMerge<A> merge(__shfl_sync(kAllLanes, lane.reference, 0, width));
  const A mean = Quotient(GroupSum(merge.AddMean(lane, A(0)), width), count);
  return merge.Result(count, mean, GroupSum(merge.M2(lane, mean), width));
}

// The normalization of a row's elements: y = (x - mean - residue) * rstd.
template <typename A>
struct RowScale {
  A mean = 0;
  A residue = 0;  // x - mean is exact for x near the mean.
  A rstd = 0;
};

// 1 / sqrt(variance + eps), rounded to nearest or next to it: its error affects a whole row. One
// Newton step on the residue of the approximate root, which takes eps as it is and not rounded into
// the sum.
__device__ inline float ReciprocalRoot(float variance, float eps) {
  float residue;
  const float sum = TwoSum(variance, eps, &residue);
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

// Deviations whose squares overflow give NaN, as in PyTorch; a mean square that overflows gives
// zeros.
template <typename A>
__device__ inline RowScale<A> FinishRow(const Moments<A>& row, const Constant& eps, bool centered) {
  const A variance = row.m2 / row.count;
  const A clamped = variance < 0 ? A(0) : variance;  // Rounding can leave -0; a NaN stays a NaN.
  RowScale<A> scale;
  scale.mean = TwoSum(row.reference, row.mean, &scale.residue);
  scale.rstd = ReciprocalRoot(clamped, eps.As<A>());
  if (centered && isinf(variance)) scale.rstd = static_cast<A>(NAN);
  return scale;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_MOMENTS_CUH_

// Every statistics of norm.h: merges of partials, and the normalization that follows from them.
//
// Partials are Moments. Where a row has no mean, m2 is the sum of squares or of absolutes, or the
// largest absolute. Kernels that leave norms to others have functions of the same names, with
// `centered` in place of the statistics.

#ifndef NORMD_KERNELS_CUDA_DEVICE_STATISTICS_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_STATISTICS_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

// The bits of |value|: they are ordered like magnitudes, and a NaN's are the largest.
__device__ inline std::uint32_t Magnitude(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}
__device__ inline unsigned long long Magnitude(double value) {
  return static_cast<unsigned long long>(__double_as_longlong(value)) & 0x7fffffffffffffffull;
}
template <typename A>
using MagnitudeBits =
    std::conditional_t<std::is_same_v<A, double>, unsigned long long, std::uint32_t>;
__device__ inline float FromMagnitude(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline double FromMagnitude(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
template <typename Bits, int N, typename A>
__device__ inline Bits LargestMagnitude(const A (&values)[N], int present, Bits largest) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < present) largest = max(largest, static_cast<Bits>(Magnitude(values[i])));
  }
  return largest;
}
// The larger of a magnitude and |value|; a NaN if one of them is.
__device__ inline float LargerMagnitude(float magnitude, float value) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(magnitude), "f"(fabsf(value)));
  return result;
#else
  return FromMagnitude(max(Magnitude(magnitude), Magnitude(value)));
#endif
}
__device__ inline double LargerMagnitude(double magnitude, double value) {
  return FromMagnitude(max(Magnitude(magnitude), Magnitude(value)));
}

// The largest of `width` adjacent lanes, a power of two.
template <typename Bits>
__device__ inline Bits LargestOfLanes(Bits value, int width) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Bits) == 4) {
    if (width == kLanes) return __reduce_max_sync(kAllLanes, value);
  }
#endif
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Whether statistics are of absolutes, not of squares.
__device__ inline bool IsOfAbsolutes(Statistics statistics) {
  return statistics == Statistics::kSumOfAbsolutes || statistics == Statistics::kLargestAbsolute;
}
__device__ constexpr bool IsOfAbsolutes(bool) { return false; }
__device__ constexpr bool IsCentered(Statistics statistics) {
  return statistics == Statistics::kMeanVariance;
}
__device__ constexpr bool IsCentered(bool centered) { return centered; }

// The absolutes of a lane: their sum and the largest. Without a branch for one of them,
// instructions of several vectors interleave.
template <typename T>
class LaneAbsolutes {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  // Adds the first `present` elements of a vector.
  __device__ void Add(const Vector& vector, int present = kCount) {
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= present) continue;
      sum_[i % 2] += fabs(values[i]);
      largest_[i % 2] = LargerMagnitude(largest_[i % 2], values[i]);
    }
  }

  // `count` is the number of elements added.
  __device__ Moments<A> Finish(bool, int) const { return Moments<A>(); }
  __device__ Moments<A> Finish(Statistics statistics, int count) const {
    Moments<A> result;
    result.count = static_cast<A>(count);
    result.m2 = statistics == Statistics::kLargestAbsolute
                    ? LargerMagnitude(largest_[0], largest_[1])
                    : sum_[0] + sum_[1];
    return result;
  }

 private:
  A sum_[2] = {0, 0};
  A largest_[2] = {0, 0};
};

// Merges two sets of a thread; the first comes earlier in the row.
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

// The sums of a kernel: of means and variances or mean squares, or of norms.
enum class RowSums { kMoments, kNorms };

// What functions of any statistics take in a kernel of these sums.
template <RowSums kSums, typename Batch>
__device__ inline auto StatisticsOf(const Batch& batch) {
  if constexpr (kSums == RowSums::kNorms) {
    return batch.norm;
  } else {
    return batch.centered;
  }
}

// Merges the sets of a group of `width` lanes, `count` elements in all.
template <typename A>
__device__ inline Moments<A> MergeStatistics(bool, const Moments<A>& own, A count, int width) {
  return MergeLanes(own, count, width);
}
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

// The normalization of a row.
template <typename A>
__device__ inline RowScale<A> FinishStatistics(bool centered, const Moments<A>& row,
                                               const Constant& eps) {
  return FinishRow(row, eps, centered);
}
template <typename A>
__device__ inline RowScale<A> FinishStatistics(Statistics statistics, const Moments<A>& row,
                                               const Constant& eps) {
  if (statistics <= Statistics::kMeanSquare) {
    return FinishRow(row, eps, statistics == Statistics::kMeanVariance);
  }
  const A norm = statistics == Statistics::kRootOfSquares ? sqrt(row.m2) : row.m2;
  const A least = eps.As<A>();
  RowScale<A> scale;
  scale.rstd = A(1) / (norm < least ? least : norm);
  return scale;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_STATISTICS_CUH_

// Statistics of 16-bit rows in registers: sums around one reference.
//
// All lanes of a warp sum relative to the same value, a mean of elements of its lane 0's first
// vector. A merge then adds sums and squares at once, in one butterfly where MergeLanes takes two
// in sequence. That is accurate as long as the reference is near the row's mean. An outlier in that
// vector moves it away: the squares exceed the row's M2 by a factor of up to n / 4, for n elements
// per row, and mean and variance lose as much of their 24 bits. The sums themselves show it
// (IsFar), and such a row is summed again around the computed mean. This happens in one of 10^4
// rows of normal numbers.

#ifndef NORMD_KERNELS_CUDA_ROWS_SHARED_REFERENCE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_SHARED_REFERENCE_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

// Whether rows of T are summed like this.
template <typename T>
inline constexpr bool kSharedReference = sizeof(T) == 2;

// The sums of a set of elements, relative to a reference, and of their squares.
template <typename A>
struct ReferenceSums {
  A reference = 0;
  A sum = 0;
  A squares = 0;
  A count = 0;
};

// Whether a reference is more than two deviations from the mean, by the squares around it and M2.
__device__ inline bool IsFar(float squares, float m2) { return squares > 5 * m2; }

// The sums of a lane's first `whole` vectors, which are at most kMost, and of the first `present`
// elements of `last`. `width` lanes, of which the first has elements, share the reference; all 32
// lanes call it together. If not `centered`, the sums are of squares alone, relative to zero.
template <typename T, int kMost, int G>
__device__ inline ReferenceSums<float> SumAround(const Vector (&vectors)[G], int whole,
                                                 const Vector& last, int present, int width,
                                                 bool centered) {
  ReferenceSums<float> result;
  if (centered) {
    const float own =
        MeanOfHead<T>(Select(whole > 0, vectors[0], last), whole > 0 ? kPerVector<T> : present);
    result.reference = __shfl_sync(kAllLanes, own, 0, width);
  }
  float sum[2] = {0, 0};
  float squares[2] = {0, 0};
  const auto add = [&](const Vector& vector, int count) {
    float values[kPerVector<T>];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) {
      const float value = i < count ? values[i] - result.reference : 0.0f;
      sum[i % 2] += value;
      squares[i % 2] = Fma(value, value, squares[i % 2]);
    }
  };
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < whole) add(vectors[i], kPerVector<T>);
  }
  if (present == kPerVector<T>) {
    add(last, kPerVector<T>);
  } else if (present > 0) {
    add(last, present);
  }
  result.sum = sum[0] + sum[1];
  result.squares = squares[0] + squares[1];
  return result;
}

// The same for whole vectors, which are zeros after a lane's first `whole`. There is no branch
// between them, so that their instructions interleave.
template <typename T, int G>
__device__ inline ReferenceSums<float> SumWholeAround(const Vector (&vectors)[G], int whole,
                                                      int width, bool centered) {
  constexpr int kCount = kPerVector<T>;
  ReferenceSums<float> result;
  float values[kCount];
  float squares[2] = {0, 0};
  if (!centered) {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      Unpack<T>(vectors[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) squares[j % 2] = Fma(values[j], values[j], squares[j % 2]);
    }
    result.squares = squares[0] + squares[1];
    return result;
  }
  result.reference = __shfl_sync(kAllLanes, MeanOfHead<T>(vectors[0], kCount), 0, width);
  float sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const float reference = i < whole ? result.reference : 0.0f;  // Zeros add nothing around zero.
    Unpack<T>(vectors[i], values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float value = values[j] - reference;
      sum[j % 2] += value;
      squares[j % 2] = Fma(value, value, squares[j % 2]);
    }
  }
  result.sum = sum[0] + sum[1];
  result.squares = squares[0] + squares[1];
  return result;
}

// Adds an element to a lane's sums around a known reference.
__device__ inline void AddAgain(float element, ReferenceSums<float>* sums) {
  const float value = element - sums->reference;
  sums->sum += value;
  sums->squares = Fma(value, value, sums->squares);
}

// Adds up the sums of `width` lanes; every lane gets the result. One branch for all steps: shuffles
// on both sides of a branch in each step would run in sequence.
__device__ inline ReferenceSums<float> AddLanes(ReferenceSums<float> lane, int width,
                                                bool centered) {
  if (!centered) {
    lane.squares = GroupSum(lane.squares, width);
    return lane;
  }
  GroupSums(&lane.sum, &lane.squares, width);
  return lane;
}

// The same sums around another reference.
__device__ inline ReferenceSums<float> Around(float reference, ReferenceSums<float> sums) {
  const float distance = sums.reference - reference;
  const float twice = Fma(sums.count, distance, sums.sum + sums.sum);
  sums.squares = Fma(distance, twice, sums.squares);
  sums.sum = Fma(sums.count, distance, sums.sum);
  sums.reference = reference;
  return sums;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_SHARED_REFERENCE_CUH_

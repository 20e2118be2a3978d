// Statistics of a lane's part of a run that comes in chunks.

#ifndef NORMD_KERNELS_CUDA_ROWS_CHUNK_MOMENTS_CUH_
#define NORMD_KERNELS_CUDA_ROWS_CHUNK_MOMENTS_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/rows/staging_ring.cuh"

namespace normd::norm::cuda {

// The number of elements of T that a lane has of a run, or of the rest of one: `left` bytes from
// the lane's first vector on, of which it has the first 16 of every kStepBytes. Not positive: none.
template <typename T>
__device__ inline int LaneElements(int left) {
  if (left <= 0) return 0;
  const int steps = left / kStepBytes;
  return (steps * kVectorBytes + min(left - steps * kStepBytes, kVectorBytes)) /
         static_cast<int>(sizeof(T));
}

// Sums a lane's elements and their squares relative to the mean of its first chunk. An outlier
// moves that reference by a 16th of its own size, and widens the variance as well, so that the
// cancellation is small beside the remainder.
template <typename T>
class ChunkMoments {
 public:
  using A = Accumulator<T>;

  __device__ explicit ChunkMoments(bool centered) : centered_(centered) {}

  // Call before Add, for the first `present` elements of each vector of the first chunk, then with
  // their total number.
  __device__ void AddToReference(const Vector& vector, int present = kCount) {
    ForElements(vector, present, [&](A value, int i) { sums_[i % 2] += value; });
  }
  __device__ void SetReference(int elements) {
    if (centered_ && elements > 0) {
      reference_ = Quotient(sums_[0] + sums_[1], static_cast<A>(elements));
    }
    sums_[0] = sums_[1] = 0;
  }

  // Adds the first `present` elements of a vector.
  __device__ void Add(const Vector& vector, int present = kCount) {
    ForElements(vector, present, [&](A value, int i) {
      const A deviation = value - reference_;
      sums_[i % 2] += deviation;
      squares_[i % 2] = Fma(deviation, deviation, squares_[i % 2]);
    });
  }

  // `elements` is the number of added elements.
  __device__ Moments<A> Result(int elements) const {
    return MomentsOfSums(reference_, sums_[0] + sums_[1], squares_[0] + squares_[1], elements,
                         centered_);
  }

 private:
  static constexpr int kCount = kPerVector<T>;

  template <typename Function>
  __device__ static void ForElements(const Vector& vector, int present, Function function) {
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < present) function(values[i], i);
    }
  }

  const bool centered_;
  A reference_ = 0;
  A sums_[2] = {0, 0};
  A squares_[2] = {0, 0};
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_CHUNK_MOMENTS_CUH_

// The shared parts of the channels-last kernels: a thread's vectors, and sums per channel.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_COLUMNS_CUH_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_COLUMNS_CUH_

#include "kernels/cuda/channels_last/strip_plan.h"
#include "kernels/cuda/device/cache_policy.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace normd::norm::cuda {

// The widest access, a power of two up to 16, that divides the address of every vector. Vectors of
// positions are `position_bytes` apart, and runs `run_bytes`.
__device__ inline int AccessWidth(const char* address, std::int64_t position_bytes,
                                  std::int64_t run_bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) |
                    static_cast<std::uintptr_t>(position_bytes | run_bytes | kVectorBytes);
  return static_cast<int>(bits & -bits);
}

// The first `present` elements at `address`, zero after them, by accesses of `width` bytes: a power
// of two from the element's size to 16 that divides the address.
template <typename T>
__device__ inline Vector LoadColumn(const char* address, int present, int width) {
  constexpr int kCount = kPerVector<T>;
  if (present == kCount && width == kVectorBytes) return LoadVector(address);
  if (present == kCount && width == 8) {
    const uint2 low = LoadKept(reinterpret_cast<const uint2*>(address));
    const uint2 high = LoadKept(reinterpret_cast<const uint2*>(address) + 1);
    return make_uint4(low.x, low.y, high.x, high.y);
  }
  if (present == kCount && width == 4) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(address);
    return make_uint4(LoadKept(words), LoadKept(words + 1), LoadKept(words + 2),
                      LoadKept(words + 3));
  }
  Accumulator<T> values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = i < present ? Widen(reinterpret_cast<const T*>(address)[i]) : Accumulator<T>(0);
  }
  return Pack<T>(values);
}

template <typename T>
__device__ inline void StoreColumn(char* address, const Vector& vector, int present, int width) {
  constexpr int kCount = kPerVector<T>;
  if (present == kCount && width == kVectorBytes) {
    StoreVector(address, vector);
  } else if (present == kCount && width == 8) {
    reinterpret_cast<uint2*>(address)[0] = make_uint2(vector.x, vector.y);
    reinterpret_cast<uint2*>(address)[1] = make_uint2(vector.z, vector.w);
  } else if (present == kCount && width == 4) {
    auto* const words = reinterpret_cast<unsigned*>(address);
    words[0] = vector.x;
    words[1] = vector.y;
    words[2] = vector.z;
    words[3] = vector.w;
  } else {
    StoreSpan<T>(address, vector, 0, present * static_cast<int>(sizeof(T)));
  }
}

// A thread's sums over its column, in kParts partials, each relative to the mean of its elements in
// the first two vectors (see moments.cuh):
//   1             all of the column belongs to one group
//   2             channels before `boundary` belong to one group, the others to the next
//   kPerVector   each channel has its own
template <typename T, int kParts>
class ColumnSums {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  // `first` is the column's first vector, and `second` the next if there is one; both must still be
  // added.
  __device__ ColumnSums(bool centered, int boundary, const Vector& first, const Vector& second)
      : centered_(centered), boundary_(min(boundary, kCount)) {
    if (!centered) return;
    A values[kCount];
    Unpack<T>(Average<T>(first, second), values);
    if constexpr (kParts == kCount) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) reference_[i] = values[i];
    } else if constexpr (kParts == 2) {
      const A low = boundary_ > 1 ? Middle(values[0], values[1]) : values[0];
      const A high = boundary_ < kCount - 1 ? Middle(values[kCount - 2], values[kCount - 1])
                                            : values[kCount - 1];
#pragma unroll
      for (int i = 0; i < kCount; ++i) reference_[i] = i < boundary_ ? low : high;
    } else {
#pragma unroll
      for (int width = kCount / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) values[i] = Middle(values[i], values[i + width]);
      }
      reference_[0] = values[0];
    }
  }

  __device__ void Add(const Vector& vector) {
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A difference = values[i] - reference_[kParts == 1 ? 0 : i];
      sum_[i] += difference;
      squares_[i] = Fma(difference, difference, squares_[i]);
    }
  }

  // The sums after `vectors` vectors were added.
  __device__ void Finish(int vectors, Moments<A> (&parts)[kParts]) {
    if constexpr (kParts == kCount) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts[i] = Part(vectors, i, i + 1);
    } else {
      parts[0] = Part(vectors, 0, kParts == 1 ? kCount : boundary_);
      if constexpr (kParts == 2) parts[1] = Part(vectors, boundary_, kCount);
    }
  }

 private:
  static constexpr int kReferences = kParts == 1 ? 1 : kCount;

  // The moments of channels [begin, end) of the column.
  __device__ Moments<A> Part(int vectors, int begin, int end) const {
    A reference = 0, sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < begin || i >= end) continue;
      if (i == begin) reference = reference_[kParts == 1 ? 0 : i];
      sum += sum_[i];
      squares += squares_[i];
    }
    return MomentsOfSums(reference, sum, squares, vectors * max(end - begin, 0), centered_);
  }

  bool centered_;
  int boundary_;
  A reference_[kReferences] = {};
  A sum_[kCount] = {};
  A squares_[kCount] = {};
};

// Where the partials of a group lie among those of one row of columns.
template <typename T, int kParts>
class GroupParts {
 public:
  // The group has channels [begin, end) of the columns.
  __device__ GroupParts(int begin, int end) : begin_(begin) {
    constexpr int kCount = kPerVector<T>;
    first_ = kParts == kCount ? begin : begin / kCount;
    count_ = kParts == kCount ? end - begin : (end - 1) / kCount - first_ + 1;
  }
  __device__ int count() const { return count_; }
  __device__ int Place(int i) const {
    if constexpr (kParts == 2 && kPerVector<T> != 2) {
      // If a column begins before the group does, the group is after its boundary.
      return 2 * (first_ + i) + ((first_ + i) * kPerVector<T> < begin_ ? 1 : 0);
    } else {
      return first_ + i;
    }
  }

 private:
  int begin_;
  int first_;
  int count_;
};

// Merges a group's partials over `rows` rows of `stride` partials, with one warp. The first partial
// has elements if any has.
template <typename T, int kParts>
__device__ inline Moments<Accumulator<T>> MergeRows(const Moments<Accumulator<T>>* partials,
                                                    const GroupParts<T, kParts>& group, int rows,
                                                    int stride) {
  using A = Accumulator<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row_step = kLanes / group.count();
  const int part_step = kLanes - row_step * group.count();
  // Calls visit(partial) for the lane's share.
  const auto for_share = [&](auto visit) {
    int row = lane / group.count();
    int part = lane - row * group.count();
    while (row < rows) {
      visit(partials[row * stride + group.Place(part)]);
      row += row_step;
      part += part_step;
      if (part >= group.count()) {
        part -= group.count();
        ++row;
      }
    }
  };
  Moments<A> merged;
  merged.reference = partials[group.Place(0)].reference;
  A sum = 0;
#pragma unroll 1
  for (bool again = false;; again = true) {
    const SetMerge<A> merge(merged.reference);
    merged.count = merged.m2 = sum = 0;
    for_share([&](const Moments<A>& partial) {
      merged.count += partial.count;
      sum = merge.AddMean(partial, sum);
    });
    GroupSums(&merged.count, &sum, kLanes);
    if (merged.count == 0) return merged;
    merged.mean = Quotient(sum, merged.count);
    for_share([&](const Moments<A>& partial) { merged.m2 += merge.M2(partial, merged.mean); });
    merged.m2 = GroupSum(merged.m2, kLanes);
    // An outlier may have moved the first reference more than two deviations from the mean.
    if (again || !(sum * merged.mean > 4 * merged.m2)) return merged;
    merged.reference += merged.mean;
  }
}

// The factors and offsets of a thread's column: y = (x - mean) * factor + offset.
template <typename T, int kParts>
struct ColumnScale {
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  A mean[kParts == 1 ? 1 : kCount];
  A factor[kCount];  // Loaded with gamma, and the offset with beta, before Set.
  A offset[kCount];

  __device__ void Set(int i, const RowScale<A>& scale) {
    mean[kParts == 1 ? 0 : i] = scale.mean;
    factor[i] *= scale.rstd;
    if (!isinf(factor[i])) offset[i] = Fma(-scale.residue, factor[i], offset[i]);
  }

  template <Activation kActivation>
  __device__ Vector Apply(const Vector& vector, A leaky_slope) const {
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = Fma(values[i] - mean[kParts == 1 ? 0 : i], factor[i], offset[i]);
      values[i] = Activate<T, kActivation>(values[i], leaky_slope);
    }
    return Pack<T>(values);
  }
  __device__ Vector Apply(const Vector& vector, Activation activation, A leaky_slope) const {
    Vector result;
    WithActivation(activation, [&](auto constant) {
      result = Apply<decltype(constant)::value>(vector, leaky_slope);
    });
    return result;
  }
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_COLUMNS_CUH_

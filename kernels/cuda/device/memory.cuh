// Runs: how a warp moves consecutive bytes of a row at any alignment.
//
// A run is the part of a row that `width` lanes (a power of two, at most 32) hold: G steps, and in
// step i lane l holds the 16 bytes at (i * width + l) * 16 from the run's begin. This assignment
// counts from the row, so it is the same at every address, and so is the order of every sum. If the
// address is no multiple of 16, the lanes, which are then a whole warp, load the aligned vectors
// that cover the run and pass bytes to their neighbours, so device memory still sees 16-byte
// accesses. A load may touch up to 15 bytes before the run, in the vector in which it begins, and
// none after its end. All this takes as many instructions as everything else: rows that stay in
// registers are moved word by word instead (word_tile.cuh).
//
// kAligned: the address and the length of every row are multiples of 16, so none of that is needed.

#ifndef NORMD_KERNELS_CUDA_DEVICE_MEMORY_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_MEMORY_CUH_

#include "kernels/cuda/device/cache_policy.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/statistics.cuh"

namespace normd::norm::cuda {

__device__ inline Vector LoadVector(const char* address) {
  return LoadKept(reinterpret_cast<const uint4*>(address));
}
// Zeros unless it exists.
__device__ inline Vector LoadVectorIf(bool exists, const char* address) {
  return LoadKeptIf(exists, reinterpret_cast<const uint4*>(address));
}
__device__ inline void StoreVector(char* address, const Vector& vector) {
  *reinterpret_cast<uint4*>(address) = vector;
}
// Does nothing unless it exists, without a branch.
__device__ inline void StoreVectorIf(bool exists, char* address, const Vector& vector) {
  asm volatile(
      "{\n\t"
      ".reg .pred exists;\n\t"
      "setp.ne.u32 exists, %5, 0;\n\t"
      "@exists st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t"
      "}" ::"l"(address),
      "r"(vector.x), "r"(vector.y), "r"(vector.z), "r"(vector.w), "r"(static_cast<unsigned>(exists))
      : "memory");
}

__device__ inline int Misalignment(const void* address) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) % kVectorBytes);
}

// Word i of a vector. By value: a choice between array elements by reference would put the array
// into memory.
__device__ inline std::uint32_t WordOf(const Vector& vector, int i) {
  return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
}

// Calls function(std::integral_constant<int, S>()) for the whole words S of a shift in bytes.
template <typename Function>
__device__ inline void WithWords(int shift, Function function) {
  switch (shift / 4) {
    case 0: function(std::integral_constant<int, 0>()); break;
    case 1: function(std::integral_constant<int, 1>()); break;
    case 2: function(std::integral_constant<int, 2>()); break;
    default: function(std::integral_constant<int, 3>()); break;
  }
}

// Two vectors as eight words, of which four are taken: S words and `bits` (0 or 16) further on.
// Words outside these four are not read.
template <int S, bool kHalfWords>
__device__ inline Vector TakeWords(const std::uint32_t (&words)[8], int bits) {
  std::uint32_t taken[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    taken[i] = words[i + S];
    if (kHalfWords) taken[i] = __funnelshift_r(words[i + S], words[i + S + 1], bits);
  }
  return make_uint4(taken[0], taken[1], taken[2], taken[3]);
}

// Bytes [shift, shift + 16) of low followed by high; shift is 0 to 15.
template <typename T>
__device__ inline Vector ShiftDown(const Vector& low, const Vector& high, int shift) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  Vector result;
  WithWords(shift, [&](auto whole) {
    result = TakeWords<decltype(whole)::value, sizeof(T) == 2>(words, shift % 4 * 8);
  });
  return result;
}

__device__ inline Vector Select(bool first, const Vector& a, const Vector& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

// A warp's run moves down by S words and `bits`: each lane takes the begin of the next lane's
// vector. `beyond` is what follows the run, in lane 0.
template <int S, bool kHalfWords, int G>
__device__ inline void MoveDown(Vector (&vectors)[G], const Vector& beyond, int bits, int lane) {
  constexpr int kWanted = S + (kHalfWords ? 1 : 0);
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const Vector& following = i + 1 < G ? vectors[i + 1 < G ? i + 1 : i] : beyond;
    std::uint32_t words[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words[k] = WordOf(vectors[i], k);
      if (k < kWanted) {
        words[k + 4] =
            __shfl_sync(kAllLanes, lane == 0 ? WordOf(following, k) : words[k], lane + 1);
      }
    }
    vectors[i] = TakeWords<S, kHalfWords>(words, bits);
  }
}

// A warp's run moves up by four words minus S words and `bits`: each lane takes the end of the
// previous lane's vector. Lane 0 takes zeros in front of the run; returns what follows it, in the
// last lane.
template <int S, bool kHalfWords, int G>
__device__ inline Vector MoveUp(Vector (&vectors)[G], int bits, int lane) {
  Vector beyond;
#pragma unroll
  for (int i = G; i >= 0; --i) {
    const Vector& own = vectors[i < G ? i : G - 1];
    const Vector& before = vectors[i > 0 ? i - 1 : 0];
    std::uint32_t words[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i == G) {
        words[k] = WordOf(own, k);
        words[k + 4] = 0;
      } else {
        words[k + 4] = WordOf(own, k);
        if (k >= S) {
          words[k] = __shfl_sync(kAllLanes, lane == kLanes - 1 ? WordOf(before, k) : words[k + 4],
                                 lane + kLanes - 1);
        }
      }
    }
    (i < G ? vectors[i < G ? i : 0] : beyond) = TakeWords<S, kHalfWords>(words, bits);
  }
  return beyond;
}

// An unsigned integer of T's size.
template <typename T>
using Bits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, unsigned long long>>;

// Loads the elements in bytes [0, end) of a vector, one by one; the rest is zero.
template <typename T>
__device__ inline Vector LoadHead(const char* address, int end) {
  unsigned long long half[2] = {0, 0};
#pragma unroll
  for (int at = 0; at < kVectorBytes; at += static_cast<int>(sizeof(T))) {
    if (at < end) {
      const unsigned long long bits = *reinterpret_cast<const Bits<T>*>(address + at);
      half[at / 8] |= bits << (at % 8 * 8);
    }
  }
  return make_uint4(static_cast<unsigned>(half[0]), static_cast<unsigned>(half[0] >> 32),
                    static_cast<unsigned>(half[1]), static_cast<unsigned>(half[1] >> 32));
}

// Stores the elements in bytes [begin, end) of a vector, one by one.
template <typename T>
__device__ inline void StoreSpan(char* address, const Vector& vector, int begin, int end) {
  const unsigned long long half[2] = {vector.x | static_cast<unsigned long long>(vector.y) << 32,
                                      vector.z | static_cast<unsigned long long>(vector.w) << 32};
#pragma unroll
  for (int at = 0; at < kVectorBytes; at += static_cast<int>(sizeof(T))) {
    if (at >= begin && at < end) {
      *reinterpret_cast<Bits<T>*>(address + at) =
          static_cast<Bits<T>>(half[at / 8] >> (at % 8 * 8));
    }
  }
}

// The number of a run's bytes that exist in a row with `left` bytes from the run's begin on: at
// most 16 more than the run has, which is all that LoadRun needs.
__device__ inline int ClampToRun(std::int64_t left, int run_bytes) {
  const std::int64_t most = run_bytes + kVectorBytes;
  return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
}

// The number of elements that exist in the run's vector at `offset`, given ClampToRun's bytes.
template <typename T>
__device__ inline int ElementsPresent(int bytes, int offset) {
  const int left = bytes - offset;
  return (left < 0 ? 0 : left < kVectorBytes ? left : kVectorBytes) / static_cast<int>(sizeof(T));
}

// vectors[index], by selections: a variable index would put the array into memory.
template <int G>
__device__ inline Vector Pick(const Vector (&vectors)[G], int index) {
  Vector picked = vectors[0];
#pragma unroll
  for (int i = 1; i < G; ++i) picked = Select(i == index, vectors[i], picked);
  return picked;
}
template <int G>
__device__ inline void Put(Vector (&vectors)[G], int index, const Vector& vector) {
#pragma unroll
  for (int i = 0; i < G; ++i) vectors[i] = Select(i == index, vector, vectors[i]);
}

// The vector in which a run ends, if the caller's lane holds it.
template <typename T>
struct RunTail {
  int index = 0;    // Among the lane's vectors.
  int present = 0;  // Elements of it that exist; 0: no such vector.

  __device__ RunTail(int bytes, int lane, int width) {
    const int vector = bytes / kVectorBytes;
    if ((vector & (width - 1)) != lane) return;
    index = vector / width;
    present = bytes % kVectorBytes / static_cast<int>(sizeof(T));
  }
};

// Loads a run of which `bytes` exist (ClampToRun); the rest is zero. All 32 lanes call it together.
template <typename T, bool kAligned, int G>
__device__ inline void LoadRun(const char* run, int bytes, int lane, int width,
                               Vector (&vectors)[G]) {
  const int shift = kAligned ? 0 : Misalignment(run);
  const int end = bytes == 0 ? 0 : bytes + shift;
  const char* const origin = run - shift;
  const int step = width * kVectorBytes;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const int offset = i * step + lane * kVectorBytes;
    vectors[i] =
        LoadVectorIf(kAligned ? offset < end : offset + kVectorBytes <= end, origin + offset);
  }
  if constexpr (kAligned) return;

  const RunTail<T> tail(end, lane, width);
  if (tail.present > 0 && tail.index < G) {
    Put(vectors, tail.index,
        LoadHead<T>(origin + (tail.index * width + lane) * kVectorBytes, end % kVectorBytes));
  }
  if (shift == 0) return;

  Vector beyond = make_uint4(0, 0, 0, 0);
  if (lane == 0) {
    if (end >= G * step + kVectorBytes) {
      beyond = LoadVector(origin + G * step);
    } else if (end > G * step) {
      beyond = LoadHead<T>(origin + G * step, end - G * step);
    }
  }
  WithWords(shift, [&](auto whole) {
    MoveDown<decltype(whole)::value, sizeof(T) == 2>(vectors, beyond, shift % 4 * 8, lane);
  });
}

// Stores the existing bytes of a run and leaves its vectors in any state. Bytes around it are not
// written.
template <typename T, bool kAligned, int G>
__device__ inline void StoreRun(char* run, int bytes, int lane, int width, Vector (&vectors)[G]) {
  const int shift = kAligned ? 0 : Misalignment(run);
  const int step = width * kVectorBytes;
  char* const origin = run - shift;
  const int end = bytes == 0 ? 0 : min(bytes, G * step) + shift;
  Vector beyond = make_uint4(0, 0, 0, 0);
  if (!kAligned && shift != 0) {
    const int down = kVectorBytes - shift;
    WithWords(down, [&](auto whole) {
      beyond = MoveUp<decltype(whole)::value, sizeof(T) == 2>(vectors, down % 4 * 8, lane);
    });
  }
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const int offset = i * step + lane * kVectorBytes;
    if constexpr (kAligned) {
      if (offset < end) StoreVector(origin + offset, vectors[i]);
    } else {
      const int begin = offset == 0 ? shift : 0;  // The bytes before belong to another row.
      if (offset + kVectorBytes <= end && begin == 0) {
        StoreVector(origin + offset, vectors[i]);
      } else if (offset + begin < end) {
        StoreSpan<T>(origin + offset, vectors[i], begin, min(end - offset, kVectorBytes));
      }
    }
  }
  // The last vector's upper bytes reach past the last aligned one.
  if (!kAligned && lane == width - 1 && end > G * step) {
    StoreSpan<T>(origin + G * step, beyond, 0, end - G * step);
  }
}

// Replaces each vector by function(i, vector) in a loop that rotates the vectors, for code that is
// too large to be repeated for each of them.
template <int G, typename Function>
__device__ inline void InTurn(Vector (&vectors)[G], Function function) {
#pragma unroll 1
  for (int i = 0; i < G; ++i) {
    const Vector done = function(i, vectors[0]);
#pragma unroll
    for (int k = 0; k + 1 < G; ++k) vectors[k] = vectors[k + 1];
    vectors[G - 1] = done;
  }
}

// The number of `count` items that a lane gets when `width` lanes take them in turn.
__device__ inline int ShareOfLane(int count, int lane, int width) {
  return (count + width - 1 - lane) >> (31 - __clz(width));
}

// The statistics of a lane's first `whole` vectors, which are at most kMost, and of the first
// `present` elements of `last`.
template <typename T, int kMost, int G>
__device__ inline Moments<Accumulator<T>> SumElements(const Vector (&vectors)[G], int whole,
                                                      const Vector& last, int present,
                                                      bool centered) {
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  const int count = whole * kCount + present;
  A reference = 0;
  if (centered && kMeanReference<T>) {
    A sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < whole) AddElements<T>(vectors[i], kCount, sum);
    }
    if (present == kCount) {
      AddElements<T>(last, kCount, sum);
    } else if (present > 0) {
      AddElements<T>(last, present, sum);
    }
    if (count > 0) reference = Quotient(sum[0] + sum[1], static_cast<A>(count));
  } else if constexpr (!kMeanReference<T>) {
    if (centered) {
      reference = MeanOfHead<T>(Select(whole > 0, vectors[0], last), whole > 0 ? kCount : present);
    }
  }
  LaneSums<T> sums(reference);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < whole) sums.Add(vectors[i], kCount, i % 2);
  }
  if (present == kCount) {
    sums.Add(last, kCount);
  } else if (present > 0) {
    sums.Add(last, present);
  }
  return sums.Finish(count, centered);
}

// The same for whole vectors, which are zeros after a lane's first `whole`. There is no branch
// between them, so that their instructions interleave.
template <typename T, int G>
__device__ inline Moments<Accumulator<T>> SumWholeVectors(const Vector (&vectors)[G], int whole,
                                                          bool centered) {
  static_assert(kMeanReference<T>, "16-bit rows in registers share their reference");
  using A = Accumulator<T>;
  constexpr int kCount = kPerVector<T>;
  const int count = whole * kCount;
  A reference = 0;
  if (centered) {
    A sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < G; ++i) AddElements<T>(vectors[i], kCount, sum);
    if (count > 0) reference = Quotient(sum[0] + sum[1], static_cast<A>(count));
  }
  A sums[2] = {0, 0};
  A squares[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < G; ++i) {
    A values[kCount];
    Unpack<T>(vectors[i], values);
    // Zeros add nothing around zero.
    AddDeviations<T>(values, kCount, i < whole ? reference : A(0), i % 2, sums, squares);
  }
  return MomentsOfSums(reference, sums[0] + sums[1], squares[0] + squares[1], count, centered);
}

// SumElements and SumWholeVectors for any statistics.
template <typename T, int kMost, int G>
__device__ inline Moments<Accumulator<T>> SumElements(const Vector (&vectors)[G], int whole,
                                                      const Vector& last, int present,
                                                      Statistics statistics) {
  if (!IsOfAbsolutes(statistics)) {
    return SumElements<T, kMost>(vectors, whole, last, present,
                                 statistics == Statistics::kMeanVariance);
  }
  LaneAbsolutes<T> absolutes;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < whole) absolutes.Add(vectors[i]);
  }
  absolutes.Add(last, present);
  return absolutes.Finish(statistics, whole * kPerVector<T> + present);
}
template <typename T, int G>
__device__ inline Moments<Accumulator<T>> SumWholeVectors(const Vector (&vectors)[G], int whole,
                                                          Statistics statistics) {
  if (IsOfAbsolutes(statistics)) {
    return SumElements<T, G>(vectors, whole, vectors[0], 0, statistics);
  }
  return SumWholeVectors<T>(vectors, whole, statistics == Statistics::kMeanVariance);
}

// The statistics of a lane's part of a run of which `bytes` exist (ClampToRun), loaded by LoadRun.
// `statistics` are any, or, as a bool, whether they are centered.
template <typename T, bool kAligned, int G, typename AnyStatistics>
__device__ inline Moments<Accumulator<T>> SumRun(const Vector (&vectors)[G], int bytes, int lane,
                                                 int width, AnyStatistics statistics) {
  bytes = min(bytes, G * width * kVectorBytes);
  const int whole = ShareOfLane(bytes / kVectorBytes, lane, width);
  if constexpr (kAligned) return SumElements<T, G>(vectors, whole, vectors[0], 0, statistics);
  const int present = RunTail<T>(bytes, lane, width).present;
  return SumElements<T, G>(vectors, whole, Pick(vectors, whole), present, statistics);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_MEMORY_CUH_

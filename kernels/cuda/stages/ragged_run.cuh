// A run of consecutive elements at any address, moved in 16-byte vectors: used by sliced_rows.cu
// for rows that begin or end inside a vector.
//
// A vector of the run is the end of one aligned vector and the begin of the next. A load takes
// both; the second is the next lane's first and comes from the L1 cache. A store would need the
// neighbour's bytes, so results go to shared memory first, in the run's vectors, and whole aligned
// vectors are assembled from there.
//
// Loads touch up to 15 bytes before the run and none after the tensor's end. Stores touch the run
// alone.

#ifndef NORMD_KERNELS_CUDA_STAGES_RAGGED_RUN_CUH_
#define NORMD_KERNELS_CUDA_STAGES_RAGGED_RUN_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace normd::norm::cuda {

// Bytes [shift, shift + 16) of low followed by high, without a branch; shift is 0 to 15.
template <typename T>
__device__ inline Vector TakeBytes(const Vector& low, const Vector& high, int shift) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  std::uint32_t by_two[6], by_one[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) by_two[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_one[i] = (shift & 4) != 0 ? by_two[i + 1] : by_two[i];
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      by_one[i] = __funnelshift_r(by_one[i], by_one[i + 1], (shift & 2) * 8);
    }
  }
  return make_uint4(by_one[0], by_one[1], by_one[2], by_one[3]);
}

// The first `bytes` of a vector, element by element if they are not 16; zeros after them.
template <typename T>
__device__ inline Vector LoadUpTo(const char* address, int bytes) {
  if (bytes >= kVectorBytes) return LoadVector(address);
  unsigned long long low = 0, high = 0;
#pragma unroll 1
  for (int at = 0; at < bytes; at += static_cast<int>(sizeof(T))) {
    const unsigned long long bits = *reinterpret_cast<const Bits<T>*>(address + at);
    if (at < 8) {
      low |= bits << (at * 8);
    } else {
      high |= bits << (at * 8 - 64);
    }
  }
  return make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32),
                    static_cast<unsigned>(high), static_cast<unsigned>(high >> 32));
}

// A run of a tensor that is read, with `bytes` from the run's begin on. Vectors are numbered from
// there.
template <typename T>
class RaggedRun {
 public:
  __device__ RaggedRun(const char* run, std::int64_t bytes)
      : shift_(Misalignment(run)), origin_(run - shift_), end_(bytes + shift_) {}

  // Zeros after the tensor's end.
  __device__ Vector Load(int vector) const {
    const std::int64_t at = std::int64_t{vector} * kVectorBytes;
    const char* const address = origin_ + at;
    Vector low, high;
    if (at + 2 * kVectorBytes <= end_) {
      low = LoadVector(address);
      high = LoadVector(address + kVectorBytes);
    } else {
      const int left = at < end_ ? static_cast<int>(end_ - at) : 0;
      low = LoadUpTo<T>(address, left);
      high = LoadUpTo<T>(address + kVectorBytes, left - kVectorBytes);
    }
    return TakeBytes<T>(low, high, shift_);
  }

 private:
  const int shift_;
  const char* const origin_;
  const std::int64_t end_;
};

// Elements in shared memory, packed from `memory` on, a multiple of 16.
template <typename T>
struct HeldElements {
  using Element = Bits<T>;
  std::uint32_t memory;

  // The 16 bytes from byte `at` on, an element's first; `shift`: at % 16.
  __device__ Vector From(int at, int shift) const {
    const std::uint32_t low = memory + static_cast<std::uint32_t>(at - shift);
    // Bytes after the run are not loaded.
    const std::uint32_t high = shift == 0 ? low : low + kVectorBytes;
    return TakeBytes<T>(ReadShared(low), ReadShared(high), shift);
  }
  __device__ Bits<T> At(int at) const {
    return static_cast<Bits<T>>(ReadSharedBits<sizeof(T)>(memory + static_cast<std::uint32_t>(at)));
  }
};

// Elements of one byte in shared memory, N of them, a multiple of 4, at the begin of every vector.
template <int N>
struct HeldBytes {
  using Element = std::uint8_t;
  std::uint32_t memory;

  __device__ Vector From(int at, int shift) const {
    std::uint32_t words[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      // A fifth word that is not needed may not exist.
      const int word = at / 4 + (i < 4 || shift % 4 != 0 ? i : 3);
      words[i] = ReadSharedBits<4>(PlaceOf(word));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], shift % 4 * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ std::uint8_t At(int at) const {
    return static_cast<std::uint8_t>(
        ReadSharedBits<1>(PlaceOf(at / 4) + static_cast<std::uint32_t>(at % 4)));
  }

 private:
  __device__ std::uint32_t PlaceOf(int word) const {
    return memory + static_cast<std::uint32_t>(word / (N / 4) * kVectorBytes + word % (N / 4) * 4);
  }
};

// Writes a run of `bytes` from shared memory. All threads of the block call it together, after a
// barrier; another one must follow before the memory changes.
template <typename Held>
__device__ inline void StoreRagged(char* run, const Held& held, int bytes, int thread,
                                   int threads) {
  using Element = typename Held::Element;
  constexpr int kElement = static_cast<int>(sizeof(Element));
  const int head = min((kVectorBytes - Misalignment(run)) % kVectorBytes, bytes);
  const int whole = (bytes - head) / kVectorBytes;
#pragma unroll 2
  for (int i = thread; i < whole; i += threads) {
    const int at = head + i * kVectorBytes;
    StoreVector(run + at, held.From(at, head % kVectorBytes));
  }
  const int tail = head + whole * kVectorBytes;
  const int at =
      thread * kElement < head ? thread * kElement : tail + (thread - head / kElement) * kElement;
  if (at < bytes) *reinterpret_cast<Element*>(run + at) = held.At(at);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_RAGGED_RUN_CUH_

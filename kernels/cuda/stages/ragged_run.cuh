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

// Writes a run of `bytes` from `held` in shared memory, a multiple of 16. All threads of the block
// call it together, after a barrier; another one must follow before `held` changes.
template <typename T>
__device__ inline void StoreRagged(char* run, std::uint32_t held, int bytes, int thread,
                                   int threads) {
  constexpr int kElement = static_cast<int>(sizeof(T));
  const int head = min((kVectorBytes - Misalignment(run)) % kVectorBytes, bytes);
  const int whole = (bytes - head) / kVectorBytes;
  const int shift = head % kVectorBytes;
#pragma unroll 2
  for (int i = thread; i < whole; i += threads) {
    const std::uint32_t from = held + static_cast<std::uint32_t>(i) * kVectorBytes;
    const Vector low = ReadShared(from);
    // Bytes after the run are not loaded.
    const Vector high = ReadShared(shift == 0 ? from : from + kVectorBytes);
    StoreVector(run + head + std::int64_t{i} * kVectorBytes, TakeBytes<T>(low, high, shift));
  }
  const int tail = head + whole * kVectorBytes;
  const int at =
      thread * kElement < head ? thread * kElement : tail + (thread - head / kElement) * kElement;
  if (at >= bytes) return;
  const std::uint32_t address = held + static_cast<std::uint32_t>(at);
  if constexpr (kElement == 2) {
    std::uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
    *reinterpret_cast<std::uint16_t*>(run + at) = bits;
  } else {
    std::uint32_t bits;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
    *reinterpret_cast<std::uint32_t*>(run + at) = bits;
  }
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_RAGGED_RUN_CUH_

// Words: how the lanes of a warp hold one step of a row that begins or ends between 16-byte
// boundaries.
//
// A word is an element, or a pair of 16-bit elements; word k of a lane is the step's word k * width
// + lane. A warp's accesses are then consecutive words wherever the row begins, in memory and in
// gamma and beta, and nothing moves between lanes. Only pairs that begin between two words (2 bytes
// off) take their halves from a word and from the next lane's.

#ifndef NORMD_KERNELS_CUDA_ROWS_WORD_STEP_CUH_
#define NORMD_KERNELS_CUDA_ROWS_WORD_STEP_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/numeric.cuh"

namespace normd::norm::cuda {

// One lane's view of a step: a vector of words for each of `width` lanes. With kPasses the lines
// leave the L2 cache first. `own` is the address of the lane's first word. All 32 lanes call
// MoveDown, MoveUp, Gather and Scatter together.
template <typename T, bool kPasses = false>
struct WordStep {
  static constexpr int kWordBytes = sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T));
  static constexpr int kWords = kVectorBytes / kWordBytes;  // In a vector.
  static constexpr int kPair = kWordBytes / static_cast<int>(sizeof(T));
  using WordBits = Bits<std::conditional_t<kWordBytes == 4, float, double>>;

  const int lane;
  const int width;

  // The offset of the run's words from those of memory, in bytes: 0, or 2 with 16-bit elements.
  __device__ static int Shift(const void* row) {
    return sizeof(T) == 2 ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row) & 2) : 0;
  }
  // The bytes of a step, and from a lane's word to its next one.
  __device__ int Bytes() const { return width * kVectorBytes; }
  __device__ int Stride() const { return width * kWordBytes; }

  __device__ static WordBits GetWord(const Vector& vector, int k) {
    if constexpr (kWordBytes == 4) {
      return WordOf(vector, k);
    } else {
      return k == 0 ? vector.x | static_cast<WordBits>(vector.y) << 32
                    : vector.z | static_cast<WordBits>(vector.w) << 32;
    }
  }
  __device__ static void PutWord(Vector& vector, int k, WordBits word) {
    if constexpr (kWordBytes == 4) {
      (k == 0 ? vector.x : k == 1 ? vector.y : k == 2 ? vector.z : vector.w) = word;
    } else {
      (k == 0 ? vector.x : vector.z) = static_cast<std::uint32_t>(word);
      (k == 0 ? vector.y : vector.w) = static_cast<std::uint32_t>(word >> 32);
    }
  }

  // The lane's words of a step. Unless it is whole, `bytes` of it exist.
  template <bool kWhole>
  __device__ Vector Load(const char* own, int bytes) const {
    const int left = bytes - lane * kWordBytes;
    Vector vector = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (kWhole || left - k * Stride() >= kWordBytes) {
        PutWord(vector, k, LoadWhole(own + k * Stride()));
      }
    }
    if (!kWhole && kPair == 2 && bytes % kWordBytes != 0) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (left - k * Stride() == static_cast<int>(sizeof(T))) {
          PutWord(vector, k, *reinterpret_cast<const std::uint16_t*>(own + k * Stride()));
        }
      }
    }
    return vector;
  }

  // Stores the lane's words of a step. Unless it is whole, `bytes` of it exist. If the lane's first
  // word `begins` with something else, that part is not changed.
  template <bool kWhole>
  __device__ void Store(char* own, const Vector& vector, int bytes, bool begins) const {
    const int left = bytes - lane * kWordBytes;
    if (begins && bytes > 0) {
      *reinterpret_cast<std::uint16_t*>(own + 2) = static_cast<std::uint16_t>(vector.x >> 16);
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if ((kWhole || left - k * Stride() >= kWordBytes) && (k > 0 || !begins)) {
        auto* const word = reinterpret_cast<WordBits*>(own + k * Stride());
        if constexpr (kPasses) {
          __stcs(word, GetWord(vector, k));
        } else {
          *word = GetWord(vector, k);
        }
      }
    }
    if (!kWhole && kPair == 2 && bytes % kWordBytes != 0) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (left - k * Stride() == static_cast<int>(sizeof(T))) {
          *reinterpret_cast<std::uint16_t*>(own + k * Stride()) =
              static_cast<std::uint16_t>(GetWord(vector, k));
        }
      }
    }
  }

  // The existing part of a word that has `bytes` bytes.
  __device__ static WordBits LoadWord(const char* address, int bytes) {
    if (bytes >= kWordBytes) return LoadWhole(address);
    if (kPair == 2 && bytes > 0) return *reinterpret_cast<const std::uint16_t*>(address);
    return 0;
  }

  // Moves a lane's words to pairs that begin `shift` bytes further on. `following`: the words after
  // the vector's last ones, in lane 0.
  __device__ void MoveDown(Vector& vector, WordBits following, int shift) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const WordBits word = WordOf(vector, k);
      const WordBits after = k + 1 < kWords ? WordOf(vector, k + 1) : following;
      const WordBits next =
          __shfl_sync(kAllLanes, lane == 0 ? after : word, (lane + 1) & (width - 1), width);
      PutWord(vector, k, __funnelshift_r(word, next, shift * 8));
    }
  }
  // The inverse: `carry` holds, in the last lane, the word before the vector's first ones, and
  // afterwards the word before the next vector's.
  __device__ void MoveUp(Vector& vector, WordBits* carry, int shift) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const WordBits pair = WordOf(vector, k);
      const WordBits previous = __shfl_sync(kAllLanes, lane == width - 1 ? *carry : pair,
                                            (lane + width - 1) & (width - 1), width);
      *carry = pair;
      PutWord(vector, k, __funnelshift_l(previous, pair, shift * 8));
    }
  }

  // The lane's vector of the step whose words the lanes hold, and the way back.
  __device__ Vector Gather(const Vector& words) const {
    Vector result;
#pragma unroll
    for (int m = 0; m < kWords; ++m) {
      const int index = lane * kWords + m;
      WordBits taken = 0;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const WordBits word = __shfl_sync(kAllLanes, GetWord(words, k), index & (width - 1), width);
        if (index - (index & (width - 1)) == k * width) taken = word;
      }
      PutWord(result, m, taken);
    }
    return result;
  }
  __device__ Vector Scatter(const Vector& vector) const {
    Vector result;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int index = k * width + lane;
      WordBits taken = 0;
#pragma unroll
      for (int m = 0; m < kWords; ++m) {
        const WordBits word = __shfl_sync(kAllLanes, GetWord(vector, m), index / kWords, width);
        if (index % kWords == m) taken = word;
      }
      PutWord(result, k, taken);
    }
    return result;
  }

 private:
  __device__ static WordBits LoadWhole(const char* address) {
    if constexpr (kPasses) {
      return __ldcs(reinterpret_cast<const WordBits*>(address));
    } else if constexpr (kWordBytes == 4) {
      return LoadKept(reinterpret_cast<const std::uint32_t*>(address));
    } else {
      return BitCast<WordBits>(LoadKept(reinterpret_cast<const uint2*>(address)));
    }
  }
};

// The place of a run's gamma and beta in shared memory, whole steps of both.
template <typename P>
struct StagedParams {
  std::uint32_t gamma;
  std::uint32_t beta;
};

// A parameter's elements for the words of a step, in memory order.
template <typename T, typename P>
struct ParamWords {
  static constexpr int kPair = WordStep<T>::kPair;
  static constexpr int kWords = WordStep<T>::kWords;
  static constexpr int kBytes = kPair * static_cast<int>(sizeof(P));
  using Raw = Bits<std::conditional_t<kBytes == 4, float, double>>;
  Raw raw[kWords] = {};

  // Reads from the lane's first element on, of which `left` exist unless all do.
  template <bool kWhole>
  __device__ void Load(const P* own, int left, int width, bool odd) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int at = k * width * kPair;
      if (kWhole || at + kPair <= left) raw[k] = __ldg(reinterpret_cast<const Raw*>(own + at));
    }
    if (!kWhole && kPair == 2 && odd) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int at = k * width * kPair;
        if (at + 1 == left) raw[k] = __ldg(reinterpret_cast<const Bits<P>*>(own + at));
      }
    }
  }

  // Reads from shared memory, where the lane's first element is at `own`.
  __device__ void ReadStaged(std::uint32_t own, int width) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const std::uint32_t at = own + k * width * kBytes;
      if constexpr (kBytes == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(raw[k]) : "r"(at));
      } else {
        asm volatile("ld.shared.u64 %0, [%1];" : "=l"(raw[k]) : "r"(at));
      }
    }
  }

  __device__ void Unpack(Accumulator<T> (&values)[kPerVector<T>]) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if constexpr (kPair == 1) {
        values[k] = static_cast<Accumulator<T>>(BitCast<P>(raw[k]));
      } else if constexpr (sizeof(P) == 2) {
        const float2 pair = UnpackPair<P>(raw[k]);
        values[2 * k] = pair.x;
        values[2 * k + 1] = pair.y;
      } else {
        values[2 * k] = __uint_as_float(static_cast<std::uint32_t>(raw[k]));
        values[2 * k + 1] = __uint_as_float(static_cast<std::uint32_t>(raw[k] >> 32));
      }
    }
  }
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_WORD_STEP_CUH_

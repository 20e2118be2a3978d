// Rows that begin or end between 16-byte boundaries, in registers.
//
// Where the length of a row is no multiple of 16 bytes, most rows of a tensor begin elsewhere in a
// vector than their neighbours. So lanes do not hold the row's vectors but its words: a word is
// an element, or a pair of elements of 16 bits, and word k of a lane is the run's word
// k * width + lane. A warp's accesses are then consecutive words wherever the row begins, in memory
// and among gamma and beta, and nothing moves between lanes. Only pairs that begin between two
// words (2 bytes off) take their halves from a word and from the next lane's.
//
// Rows of whole vectors that begin elsewhere are loaded and stored in the same way, but summed as
// the lanes hold them where they are aligned: bits do not depend on addresses.

#ifndef NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/vector_tile.cuh"

namespace normd::norm::cuda {

// What one lane of `width` holds of a run of a row: G vectors of words. The run begins at byte
// `begin` of the row, from where on `bytes` of it exist (ClampToRun). In steps of a vector a lane,
// all but the last are whole; the last one is in vectors[G - 1], wherever the run ends. All 32
// lanes call every function together; with G > 1 `width` is 32 and they have the same row.
template <typename T, int G>
class WordTile {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kWordBytes = sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T));
  static constexpr int kWords = kVectorBytes / kWordBytes;  // In a vector.
  static constexpr int kPair = kWordBytes / static_cast<int>(sizeof(T));

  __device__ WordTile(const Row& row, int begin, int bytes, int lane, int width)
      : row_(row),
        begin_(begin),
        left_(bytes),
        bytes_(min(bytes, G * width * kVectorBytes)),
        lead_(G > 1 ? max(bytes_ - 1, 0) / (kLanes * kVectorBytes) : 0),
        lane_(lane),
        width_(width),
        whole_vectors_(static_cast<int>(row.bytes) % kVectorBytes == 0) {}

  __device__ void Load(Vector (&vectors)[G]) const {
    const int shift = Shift(row_.x);
    const char* const own = row_.x + begin_ - shift + lane_ * kWordBytes;
#pragma unroll
    for (int i = 0; i + 1 < G; ++i) {
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (i < lead_) vectors[i] = LoadStep<true>(own + i * Step(), 0);
    }
    Vector& last = vectors[G - 1];
    const char* const own_last = own + lead_ * Step();
    const int end = left_ == 0 ? 0 : left_ + shift - lead_ * Step();
    if (G > 1 && end >= Step()) {
      last = LoadStep<true>(own_last, 0);
    } else {
      last = LoadStep<false>(own_last, end);
    }
    if constexpr (sizeof(T) == 2) {
      if (G > 1 ? shift == 0 : !__any_sync(kAllLanes, shift != 0)) return;
      WordBits beyond = 0;
      if (lane_ == 0 && shift != 0) beyond = LoadWord(own_last + Step(), end - Step());
#pragma unroll
      for (int i = 0; i + 1 < G; ++i) {
        const WordBits following = i + 1 < lead_ ? vectors[i + 1].x : last.x;
        if (i < lead_) MoveDown(vectors[i], following, shift);
      }
      MoveDown(last, beyond, shift);
    }
  }

  __device__ Moments<A> Sum(Vector (&vectors)[G], bool centered) const {
    if (G > 1 ? !whole_vectors_ : !__any_sync(kAllLanes, whole_vectors_)) {
      return SumElements<T, G - 1>(vectors, lead_, vectors[G - 1], ElementsOfLast(), centered);
    }
    const bool gather = G > 1 || whole_vectors_;
    if (G > 1) Put(vectors, lead_, vectors[G - 1]);
    InTurn(vectors,
           [&](int, const Vector& vector) { return Select(gather, Gather(vector), vector); });
    const int whole = gather ? ShareOfLane(bytes_ / kVectorBytes, lane_, width_) : 0;
    const Moments<A> moments =
        SumElements<T, G>(vectors, whole, vectors[G - 1], gather ? 0 : ElementsOfLast(), centered);
    InTurn(vectors,
           [&](int, const Vector& vector) { return Select(gather, Scatter(vector), vector); });
    if (G > 1) vectors[G - 1] = Pick(vectors, lead_);
    return moments;
  }

  // As VectorTile's.
  template <typename Params>
  __device__ Params Ask(Params params, const RowBatch&) const {
    return params;
  }
  __device__ RowParamValues<A> Ask(RowParams, const RowBatch& batch) const { return {batch, row_}; }

  // Turns the run into results and stores them; leaves the vectors in any state.
  template <typename P>
  __device__ void Finish(ElementParams<P, false>, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
    const ElementPlace<P> place(batch, *this);
    Store(vectors, [&](const Vector& vector, int i, auto whole) {
      A values[kCount];
      ScaleWords<decltype(whole)::value>(place, run_scale, i, vector, values);
      return Pack<T>(values);
    });
  }
  template <typename P>
  __device__ void Finish(ElementParams<P, true>, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
    const ElementPlace<P> place(batch, *this);
    InTurn(vectors, [&](int i, const Vector& vector) {
      const bool exists = i < lead_ || i + 1 == G;
      if (!exists) return vector;
      A values[kCount];
      ScaleWords<false>(place, run_scale, i + 1 < G ? i : lead_, vector, values);
      Activate<T>(batch.activation, batch.leaky_slope.As<A>(), values);
      return Pack<T>(values);
    });
    Store(vectors, [](const Vector& vector, int, auto) { return vector; });
  }

  __device__ void Finish(RowParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    Finish(RowParamValues<A>(batch, row_), batch, scale, vectors);
  }
  __device__ void Finish(const RowParamValues<A>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const RowResult<T> result(batch, params, scale);
    if (batch.activation == Activation::kNone) {
#pragma unroll
      for (int i = 0; i < G; ++i) {
        if (i < lead_ || i + 1 == G) vectors[i] = result.template Of<Activation::kNone>(vectors[i]);
      }
    } else {
      InTurn(vectors, [&](int, const Vector& vector) { return result.Of(vector); });
    }
    Store(vectors, [](const Vector& vector, int, auto) { return vector; });
  }

  __device__ void Finish(AnyParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const std::int64_t first = begin_ / static_cast<int>(sizeof(T));
    const RunEpilogue<T> epilogue(batch, row_, scale, first,
                                  first + bytes_ / static_cast<int>(sizeof(T)));
    InTurn(vectors, [&](int i, const Vector& words) {
      const int offset = (i + 1 < G ? i : lead_) * Step() + lane_ * kVectorBytes;
      const int present = i < lead_ || i + 1 == G ? ElementsPresent<T>(bytes_, offset) : 0;
      Vector vector = Gather(words);
      if (present > 0) {
        vector = epilogue.Apply(vector, first + offset / static_cast<int>(sizeof(T)), present);
      }
      return Scatter(vector);
    });
    Store(vectors, [](const Vector& vector, int, auto) { return vector; });
  }

 private:
  using WordBits = Bits<std::conditional_t<kWordBytes == 4, float, double>>;
  // Whether lines leave the L2 cache first: of float32 rows with the most vectors to a lane (0.92
  // of a copy's speed so at 16383 elements, and 0.86 without); others lose by it.
  static constexpr bool kPasses = std::is_same_v<T, float> && G == kBlockManyVectors;

  // How far the run's words lie behind those of memory, in bytes: 0, or 2 with 16-bit elements.
  __device__ static int Shift(const void* row) {
    return sizeof(T) == 2 ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row) & 2) : 0;
  }
  // Bytes of a step, and from a word of the lane to its next one.
  __device__ int Step() const { return width_ * kVectorBytes; }
  __device__ int Stride() const { return width_ * kWordBytes; }
  // Bytes of the run in its last step.
  __device__ int Rest() const { return bytes_ - lead_ * Step(); }

  // Has an address worked out once, and not for each vector anew: with 16-bit elements, where
  // instructions are scarcer than registers.
  template <typename Pointer>
  __device__ static void KeepAddress(Pointer* address) {
    if constexpr (sizeof(T) == 2) asm volatile("" : "+l"(*address));
  }

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

  __device__ static WordBits LoadWhole(const char* address) {
    if constexpr (kPasses) {
      return __ldcs(reinterpret_cast<const WordBits*>(address));
    } else if constexpr (kWordBytes == 4) {
      return LoadKept(reinterpret_cast<const std::uint32_t*>(address));
    } else {
      return BitCast<WordBits>(LoadKept(reinterpret_cast<const uint2*>(address)));
    }
  }
  // What exists of a word, of which so many bytes do.
  __device__ static WordBits LoadWord(const char* address, int bytes) {
    if (bytes >= kWordBytes) return LoadWhole(address);
    if (kPair == 2 && bytes > 0) return *reinterpret_cast<const std::uint16_t*>(address);
    return 0;
  }
  // The lane's words of a step of which, unless it is whole, `bytes` exist.
  template <bool kWhole>
  __device__ Vector LoadStep(const char* own, int bytes) const {
    const int left = bytes - lane_ * kWordBytes;
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

  // A lane's words become pairs that begin `shift` bytes further on. `following`: what follows the
  // vector's last words, in lane 0.
  __device__ void MoveDown(Vector& vector, WordBits following, int shift) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const WordBits word = WordOf(vector, k);
      const WordBits after = k + 1 < kWords ? WordOf(vector, k + 1) : following;
      const WordBits next =
          __shfl_sync(kAllLanes, lane_ == 0 ? after : word, (lane_ + 1) & (width_ - 1), width_);
      PutWord(vector, k, __funnelshift_r(word, next, shift * 8));
    }
  }
  // And back: `carry` holds what precedes the vector's first words, in the last lane, and then
  // what precedes those that follow.
  __device__ void MoveUp(Vector& vector, WordBits* carry, int shift) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const WordBits pair = WordOf(vector, k);
      const WordBits previous = __shfl_sync(kAllLanes, lane_ == width_ - 1 ? *carry : pair,
                                            (lane_ + width_ - 1) & (width_ - 1), width_);
      *carry = pair;
      PutWord(vector, k, __funnelshift_l(previous, pair, shift * 8));
    }
  }

  // Elements of the last step that the lane holds.
  __device__ int ElementsOfLast() const {
    const int words = Rest() / kWordBytes;
    const bool half = Rest() % kWordBytes != 0 && (words & (width_ - 1)) == lane_;
    return ShareOfLane(words, lane_, width_) * kPair + (kPair == 2 && half ? 1 : 0);
  }

  // The lane's vector of the step whose words the lanes hold, and the way back.
  __device__ Vector Gather(const Vector& words) const {
    Vector result;
#pragma unroll
    for (int m = 0; m < kWords; ++m) {
      const int index = lane_ * kWords + m;
      WordBits taken = 0;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const WordBits word =
            __shfl_sync(kAllLanes, GetWord(words, k), index & (width_ - 1), width_);
        if (index - (index & (width_ - 1)) == k * width_) taken = word;
      }
      PutWord(result, m, taken);
    }
    return result;
  }
  __device__ Vector Scatter(const Vector& vector) const {
    Vector result;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int index = k * width_ + lane_;
      WordBits taken = 0;
#pragma unroll
      for (int m = 0; m < kWords; ++m) {
        const WordBits word = __shfl_sync(kAllLanes, GetWord(vector, m), index / kWords, width_);
        if (index % kWords == m) taken = word;
      }
      PutWord(result, k, taken);
    }
    return result;
  }

  // A parameter's elements for the words of a step, as they lie in memory.
  template <typename P>
  struct ParamWords {
    static constexpr int kBytes = kPair * static_cast<int>(sizeof(P));
    using Raw = Bits<std::conditional_t<kBytes == 4, float, double>>;
    Raw raw[kWords] = {};

    // From the lane's first element on, of which `left` exist unless all do.
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

    __device__ void Unpack(A (&values)[kCount]) const {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if constexpr (kPair == 1) {
          values[k] = static_cast<A>(BitCast<P>(raw[k]));
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

  // Where the lane's first element has its gamma and beta, and what the run's last step has of
  // them.
  template <typename P>
  struct ElementPlace {
    const P* gamma;
    const P* beta;
    bool has_beta;
    int left;  // Elements of the run from the lane's first on.
    bool odd;

    __device__ ElementPlace(const RowBatch& batch, const WordTile& tile) {
      const std::int64_t first =
          tile.row_.first_channel + tile.begin_ / static_cast<int>(sizeof(T)) + tile.lane_ * kPair;
      gamma = static_cast<const P*>(batch.gamma.data) + first;
      beta = static_cast<const P*>(batch.beta.data) + first;
      has_beta = batch.beta.data != nullptr;
      KeepAddress(&gamma);
      KeepAddress(&beta);
      left = tile.bytes_ / static_cast<int>(sizeof(T)) - tile.lane_ * kPair;
      odd = tile.Rest() % kWordBytes != 0;
    }
  };

  // Scales the words of step i, all of which exist if kWhole.
  template <bool kWhole, typename P>
  __device__ void ScaleWords(const ElementPlace<P>& place, const RunScale<T>& scale, int i,
                             const Vector& vector, A (&values)[kCount]) const {
    ParamWords<P> raw_gamma, raw_beta;
    const int elements = i * width_ * kCount;
    const int left = place.left - elements;
    raw_gamma.template Load<kWhole>(place.gamma + elements, left, width_, place.odd);
    if (place.has_beta) {
      raw_beta.template Load<kWhole>(place.beta + elements, left, width_, place.odd);
    }
    A gamma[kCount], beta[kCount];
    raw_gamma.Unpack(gamma);
    raw_beta.Unpack(beta);
    Unpack<T>(vector, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = scale.ByElement(values[j], gamma[j], beta[j]);
  }

  // Stores result(vector, i, whole) of each step i in turn; `whole` is std::true_type where the
  // step needs no checks.
  template <typename Function>
  __device__ void Store(const Vector (&vectors)[G], Function result) const {
    char* own = row_.y + begin_ - Shift(row_.y) + lane_ * kWordBytes;
    KeepAddress(&own);
    WordBits carry = 0;
#pragma unroll
    for (int i = 0; i + 1 < G; ++i) {
      if (i < lead_) {
        StoreStep<true>(own + i * Step(), i, result(vectors[i], i, std::true_type()), &carry);
      }
    }
    char* const own_last = own + lead_ * Step();
    if (G > 1 && Rest() == Step()) {
      StoreStep<true>(own_last, lead_, result(vectors[G - 1], lead_, std::true_type()), &carry);
    } else {
      StoreStep<false>(own_last, lead_, result(vectors[G - 1], lead_, std::false_type()), &carry);
    }
    // The last pair's second half lies in the step that follows.
    if (sizeof(T) == 2 && Shift(row_.y) != 0 && Rest() == Step() && lane_ == width_ - 1) {
      *reinterpret_cast<std::uint16_t*>(own_last + Stride() * (kWords - 1) + kWordBytes) =
          static_cast<std::uint16_t>(carry >> 16);
    }
  }

  // Stores the results of step i, from the address of the lane's first word on.
  template <bool kWhole>
  __device__ void StoreStep(char* own, int i, Vector vector, WordBits* carry) const {
    const int shift = Shift(row_.y);
    if constexpr (sizeof(T) == 2) {
      if (G > 1 ? shift != 0 : __any_sync(kAllLanes, shift != 0)) MoveUp(vector, carry, shift);
    }
    const int end = Rest() == 0 ? 0 : Rest() + shift;
    const int left = end - lane_ * kWordBytes;
    // What precedes the run is not ours.
    const bool begins = sizeof(T) == 2 && i == 0 && shift != 0 && lane_ == 0;
    if (begins && end > 0) {
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
    if (!kWhole && kPair == 2 && end % kWordBytes != 0) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (left - k * Stride() == static_cast<int>(sizeof(T))) {
          *reinterpret_cast<std::uint16_t*>(own + k * Stride()) =
              static_cast<std::uint16_t>(GetWord(vector, k));
        }
      }
    }
  }

  const Row& row_;
  const int begin_;
  const int left_;   // In the row from the run's begin on, at most 16 more than the run has.
  const int bytes_;  // In the run.
  const int lead_;   // Steps before the last.
  const int lane_;
  const int width_;
  const bool whole_vectors_;
};

template <typename T, bool kAligned, int G>
using RegisterTile = std::conditional_t<kAligned, VectorTile<T, G>, WordTile<T, G>>;

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_

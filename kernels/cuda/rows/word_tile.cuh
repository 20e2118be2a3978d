// Rows that begin or end between 16-byte boundaries, in registers.
//
// If the length of a row is no multiple of 16 bytes, most rows of a tensor begin elsewhere in a
// vector than their neighbours. Lanes therefore hold the row's words instead of its vectors
// (word_step.cuh).
//
// Rows of whole vectors that begin elsewhere are loaded and stored in the same way, but summed in
// the order of aligned rows: bits do not depend on addresses.

#ifndef NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/vector_tile.cuh"
#include "kernels/cuda/rows/word_step.cuh"

namespace normd::norm::cuda {

// One lane's part of a run of a row, for `width` lanes: G vectors of words. The run begins at byte
// `begin` of the row, and `bytes` of it exist (ClampToRun). In steps of a vector per lane, all but
// the last are whole; the last one is in vectors[G - 1], wherever the run ends. All 32 lanes call
// every function together; with G > 1 `width` is 32 and they have the same row.
template <typename T, int G>
class WordTile {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ WordTile(const Row& row, int begin, int bytes, int lane, int width)
      : row_(row),
        begin_(begin),
        left_(bytes),
        bytes_(min(bytes, G * width * kVectorBytes)),
        lead_(G > 1 ? max(bytes_ - 1, 0) / (kLanes * kVectorBytes) : 0),
        step_{lane, width},
        whole_vectors_(static_cast<int>(row.bytes) % kVectorBytes == 0) {}

  __device__ void Load(Vector (&vectors)[G]) const {
    const int shift = Step::Shift(row_.x);
    const char* const own = row_.x + begin_ - shift + step_.lane * kWordBytes;
#pragma unroll
    for (int i = 0; i < G; ++i) LoadPlace(own, i, vectors);
    if constexpr (sizeof(T) == 2) {
      if (G > 1 ? shift == 0 : !__any_sync(kAllLanes, shift != 0)) return;
      std::uint32_t beyond = 0;
      if (step_.lane == 0 && shift != 0) beyond = LoadBeyond(own);
      MoveDown(vectors, beyond, shift);
    }
  }
  // Load in parts: loads place i of the vectors; call it for all G places, in any order, before
  // Settle.
  __device__ void Ask(int i, Vector (&vectors)[G], std::uint32_t* beyond) const {
    const int shift = Step::Shift(row_.x);
    const char* const own = row_.x + begin_ - shift + step_.lane * kWordBytes;
    LoadPlace(own, i, vectors);
    if (sizeof(T) == 2 && i + 1 == G && step_.lane == 0 && shift != 0) *beyond = LoadBeyond(own);
  }
  __device__ void Settle(Vector (&vectors)[G], std::uint32_t beyond) const {
    if constexpr (sizeof(T) == 2) {
      const int shift = Step::Shift(row_.x);
      if (shift != 0) MoveDown(vectors, beyond, shift);
    }
  }

  // `statistics` as VectorTile's.
  template <typename AnyStatistics>
  __device__ Moments<A> Sum(Vector (&vectors)[G], AnyStatistics statistics) const {
    if (G > 1 ? !whole_vectors_ : !__any_sync(kAllLanes, whole_vectors_)) {
      return SumElements<T, G - 1>(vectors, lead_, vectors[G - 1], ElementsOfLast(), statistics);
    }
    return Gathered(vectors, [&](int whole, int present) {
      return SumElements<T, G>(vectors, whole, vectors[G - 1], present, statistics);
    });
  }
  // The same around the reference of `width` lanes.
  __device__ ReferenceSums<A> SumTogether(Vector (&vectors)[G], bool centered) const {
    if (G > 1 ? !whole_vectors_ : !__any_sync(kAllLanes, whole_vectors_)) {
      return SumAround<T, G - 1>(vectors, lead_, vectors[G - 1], ElementsOfLast(), step_.width,
                                 centered);
    }
    return Gathered(vectors, [&](int whole, int present) {
      return SumAround<T, G>(vectors, whole, vectors[G - 1], present, step_.width, centered);
    });
  }
  // As VectorTile's, but from memory: exchanging the words again would take registers.
  __device__ ReferenceSums<A> SumTogetherAgain(const Vector (&)[G], A reference) const {
    ReferenceSums<A> sums = {reference};
    const T* const x = reinterpret_cast<const T*>(row_.x + begin_);
    const int elements = bytes_ / static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int first = step_.lane * kCount; first < elements; first += step_.width * kCount) {
      const int end = min(first + kCount, elements);
#pragma unroll 4
      for (int i = first; i < end; ++i) AddAgain(Widen(x[i]), &sums);
    }
    return sums;
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
    FinishPlain(ElementPlace<P>(batch, *this), scale, vectors, [](int) {});
  }
  template <typename P>
  __device__ void Finish(ElementParams<P, true>, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    FinishActivated(ElementPlace<P>(batch, *this), batch, scale, vectors, [](int) {});
  }
  // The same with parameters in shared memory; calls done(i) when place i of the vectors is free.
  template <typename P, typename Function>
  __device__ void Finish(const StagedParams<P>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G], Function done) const {
    const StagedPlace<P> place = {params, step_};
    if (batch.activation == Activation::kNone) {
      FinishPlain(place, scale, vectors, done);
    } else {
      FinishActivated(place, batch, scale, vectors, done);
    }
  }

  __device__ void Finish(RowParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    Finish(RowParamValues<A>(batch, row_), batch, scale, vectors);
  }
  __device__ void Finish(const RowParamValues<A>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    Finish(params, batch, scale, vectors, [](int) {});
  }
  // Calls done(i) when place i of the vectors is free.
  template <typename Function>
  __device__ void Finish(const RowParamValues<A>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G], Function done) const {
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
    Store(
        vectors, [](const Vector& vector, int, auto) { return vector; }, done);
  }

  __device__ void Finish(GeneralParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const std::int64_t first = begin_ / static_cast<int>(sizeof(T));
    const RunEpilogue<T> epilogue(batch, row_, scale, first,
                                  first + bytes_ / static_cast<int>(sizeof(T)));
    InTurn(vectors, [&](int i, const Vector& words) {
      const int offset = (i + 1 < G ? i : lead_) * step_.Bytes() + step_.lane * kVectorBytes;
      const int present = i < lead_ || i + 1 == G ? ElementsPresent<T>(bytes_, offset) : 0;
      Vector vector = step_.Gather(words);
      if (present > 0) {
        vector = epilogue.Apply(vector, first + offset / static_cast<int>(sizeof(T)), present);
      }
      return step_.Scatter(vector);
    });
    Store(vectors, [](const Vector& vector, int, auto) { return vector; });
  }

 private:
  // The bytes of the row from the last step's first word on.
  __device__ int EndOfLast() const {
    return left_ == 0 ? 0 : left_ + Step::Shift(row_.x) - lead_ * step_.Bytes();
  }

  // Loads the words at place i of the vectors; the lane's first one is at `own`.
  __device__ void LoadPlace(const char* own, int i, Vector (&vectors)[G]) const {
    if (i + 1 < G) {
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (i < lead_) vectors[i] = step_.template Load<true>(own + i * step_.Bytes(), 0);
      return;
    }
    const char* const own_last = own + lead_ * step_.Bytes();
    const int end = EndOfLast();
    if (G > 1 && end >= step_.Bytes()) {
      vectors[i] = step_.template Load<true>(own_last, 0);
    } else {
      vectors[i] = step_.template Load<false>(own_last, end);
    }
  }
  // The words after the last step's.
  __device__ std::uint32_t LoadBeyond(const char* own) const {
    return static_cast<std::uint32_t>(
        step_.LoadWord(own + (lead_ + 1) * step_.Bytes(), EndOfLast() - step_.Bytes()));
  }

  // Moves words to pairs that begin `shift` bytes further on. `beyond` is lane 0's.
  __device__ void MoveDown(Vector (&vectors)[G], std::uint32_t beyond, int shift) const {
    Vector& last = vectors[G - 1];
#pragma unroll
    for (int i = 0; i + 1 < G; ++i) {
      const WordBits following = i + 1 < lead_ ? vectors[i + 1].x : last.x;
      if (i < lead_) step_.MoveDown(vectors[i], following, shift);
    }
    step_.MoveDown(last, beyond, shift);
  }

  // Returns sum(whole, present), called while lanes hold the vectors of a row of whole ones, as in
  // VectorTile.
  template <typename Function>
  __device__ auto Gathered(Vector (&vectors)[G], Function sum) const {
    const bool gather = G > 1 || whole_vectors_;
    if (G > 1) Put(vectors, lead_, vectors[G - 1]);
    InTurn(vectors,
           [&](int, const Vector& vector) { return Select(gather, step_.Gather(vector), vector); });
    const int whole = gather ? ShareOfLane(bytes_ / kVectorBytes, step_.lane, step_.width) : 0;
    const auto sums = sum(whole, gather ? 0 : ElementsOfLast());
    InTurn(vectors, [&](int, const Vector& vector) {
      return Select(gather, step_.Scatter(vector), vector);
    });
    if (G > 1) vectors[G - 1] = Pick(vectors, lead_);
    return sums;
  }

  // Whether lines leave the L2 cache first: for float32 rows with the most vectors per lane (at
  // 16383 elements 0.92 of a copy's speed with it, 0.86 without). Others get slower.
  static constexpr bool kPasses = std::is_same_v<T, float> && G == kBlockManyVectors;
  using Step = WordStep<T, kPasses>;
  using WordBits = typename Step::WordBits;
  static constexpr int kWordBytes = Step::kWordBytes;
  static constexpr int kWords = Step::kWords;
  static constexpr int kPair = Step::kPair;

  // Makes the compiler compute an address once, and not for each vector anew: for 16-bit elements,
  // whose instructions are scarcer than registers.
  template <typename Pointer>
  __device__ static void KeepAddress(Pointer* address) {
    if constexpr (sizeof(T) == 2) asm volatile("" : "+l"(*address));
  }

  // Bytes of the run in its last step.
  __device__ int Rest() const { return bytes_ - lead_ * step_.Bytes(); }

  // Elements of the last step in the lane.
  __device__ int ElementsOfLast() const {
    const int words = Rest() / kWordBytes;
    const bool half = Rest() % kWordBytes != 0 && (words & (step_.width - 1)) == step_.lane;
    return ShareOfLane(words, step_.lane, step_.width) * kPair + (kPair == 2 && half ? 1 : 0);
  }

  // The place of the gamma and beta of the lane's first element, and the part of them in the run's
  // last step.
  template <typename P>
  struct ElementPlace {
    const P* gamma;
    const P* beta;
    bool has_beta;
    int left;  // Elements of the run from the lane's first on.
    bool odd;

    __device__ ElementPlace(const RowBatch& batch, const WordTile& tile) {
      const std::int64_t first = tile.row_.first_channel +
                                 tile.begin_ / static_cast<int>(sizeof(T)) +
                                 tile.step_.lane * kPair;
      gamma = static_cast<const P*>(batch.gamma.data) + first;
      beta = static_cast<const P*>(batch.beta.data) + first;
      has_beta = batch.beta.data != nullptr;
      KeepAddress(&gamma);
      KeepAddress(&beta);
      left = tile.bytes_ / static_cast<int>(sizeof(T)) - tile.step_.lane * kPair;
      odd = tile.Rest() % kWordBytes != 0;
    }

    // The parameters of a step that begins `elements` after the run's begin.
    template <bool kWhole>
    __device__ void Read(int elements, int width, A (&gammas)[kCount], A (&betas)[kCount]) const {
      ParamWords<T, P> raw_gamma, raw_beta;
      raw_gamma.template Load<kWhole>(gamma + elements, left - elements, width, odd);
      if (has_beta) raw_beta.template Load<kWhole>(beta + elements, left - elements, width, odd);
      raw_gamma.Unpack(gammas);
      raw_beta.Unpack(betas);
    }
  };

  // The same in shared memory, where the whole of the last step can be read.
  template <typename P>
  struct StagedPlace {
    const StagedParams<P>& params;
    const Step& step;

    template <bool>
    __device__ void Read(int elements, int width, A (&gammas)[kCount], A (&betas)[kCount]) const {
      const int own = (elements + step.lane * kPair) * static_cast<int>(sizeof(P));
      ParamWords<T, P> raw_gamma, raw_beta;
      raw_gamma.ReadStaged(params.gamma + own, width);
      raw_beta.ReadStaged(params.beta + own, width);
      raw_gamma.Unpack(gammas);
      raw_beta.Unpack(betas);
    }
  };

  template <typename Place, typename Function>
  __device__ void FinishPlain(const Place& place, const RowScale<A>& scale, Vector (&vectors)[G],
                              Function done) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
    Store(
        vectors,
        [&](const Vector& vector, int i, auto whole) {
          A values[kCount];
          ScaleWords<decltype(whole)::value>(place, run_scale, i, vector, values);
          return Pack<T>(values);
        },
        done);
  }
  template <typename Place, typename Function>
  __device__ void FinishActivated(const Place& place, const RowBatch& batch,
                                  const RowScale<A>& scale, Vector (&vectors)[G],
                                  Function done) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
    InTurn(vectors, [&](int i, const Vector& vector) {
      const bool exists = i < lead_ || i + 1 == G;
      if (!exists) return vector;
      A values[kCount];
      ScaleWords<false>(place, run_scale, i + 1 < G ? i : lead_, vector, values);
      Activate<T>(batch.activation, batch.leaky_slope.As<A>(), values);
      return Pack<T>(values);
    });
    Store(
        vectors, [](const Vector& vector, int, auto) { return vector; }, done);
  }

  // Scales the words of step i; all of them exist if kWhole.
  template <bool kWhole, typename Place>
  __device__ void ScaleWords(const Place& place, const RunScale<T>& scale, int i,
                             const Vector& vector, A (&values)[kCount]) const {
    A gamma[kCount], beta[kCount];
    place.template Read<kWhole>(i * step_.width * kCount, step_.width, gamma, beta);
    Unpack<T>(vector, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = scale.ByElement(values[j], gamma[j], beta[j]);
  }

  // Stores result(vector, i, whole) of each step i in turn; `whole` is std::true_type where the
  // step needs no checks. Calls done(i) when place i of the vectors is free.
  template <typename Function>
  __device__ void Store(const Vector (&vectors)[G], Function result) const {
    Store(vectors, result, [](int) {});
  }
  template <typename Function, typename Done>
  __device__ void Store(const Vector (&vectors)[G], Function result, Done done) const {
    char* own = row_.y + begin_ - Step::Shift(row_.y) + step_.lane * kWordBytes;
    KeepAddress(&own);
    WordBits carry = 0;
#pragma unroll
    for (int i = 0; i + 1 < G; ++i) {
      if (i < lead_) {
        StoreStep<true>(own + i * step_.Bytes(), i, result(vectors[i], i, std::true_type()),
                        &carry);
      }
      done(i);
    }
    char* const own_last = own + lead_ * step_.Bytes();
    if (G > 1 && Rest() == step_.Bytes()) {
      StoreStep<true>(own_last, lead_, result(vectors[G - 1], lead_, std::true_type()), &carry);
    } else {
      StoreStep<false>(own_last, lead_, result(vectors[G - 1], lead_, std::false_type()), &carry);
    }
    done(G - 1);
    // The last pair's second half is in the next step.
    if (sizeof(T) == 2 && Step::Shift(row_.y) != 0 && Rest() == step_.Bytes() &&
        step_.lane == step_.width - 1) {
      *reinterpret_cast<std::uint16_t*>(own_last + step_.Stride() * (kWords - 1) + kWordBytes) =
          static_cast<std::uint16_t>(carry >> 16);
    }
  }

  // Stores the results of step i, from the address of the lane's first word on.
  template <bool kWhole>
  __device__ void StoreStep(char* own, int i, Vector vector, WordBits* carry) const {
    const int shift = Step::Shift(row_.y);
    if constexpr (sizeof(T) == 2) {
      if (G > 1 ? shift != 0 : __any_sync(kAllLanes, shift != 0)) {
        step_.MoveUp(vector, carry, shift);
      }
    }
    // The bytes before the run belong to another row.
    const bool begins = sizeof(T) == 2 && i == 0 && shift != 0 && step_.lane == 0;
    step_.template Store<kWhole>(own, vector, Rest() == 0 ? 0 : Rest() + shift, begins);
  }

  const Row& row_;
  const int begin_;
  const int left_;   // Bytes of the row from the run's begin on, at most 16 more than the run has.
  const int bytes_;  // Bytes of the run.
  const int lead_;   // Steps before the last.
  const Step step_;
  const bool whole_vectors_;
};

template <typename T, bool kAligned, int G>
using RegisterTile = std::conditional_t<kAligned, VectorTile<T, G>, WordTile<T, G>>;

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_WORD_TILE_CUH_

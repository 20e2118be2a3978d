// A run in registers (memory.cuh) from its statistics to its results: the shared part of kernels
// that hold rows in registers.

#ifndef NORMD_KERNELS_CUDA_ROWS_VECTOR_TILE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_VECTOR_TILE_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/shared_reference.cuh"

namespace normd::norm::cuda {

// The kinds of gamma and beta, fixed at compile time so that the common case is short. This one:
// one gamma and perhaps one beta for each element, of type P, where 16-byte loads can fetch them
// from each row's first channel on; an activation if kActivated. With kAhead they are loaded before
// the row's statistics are known. That takes registers and hides one wait behind another: it is for
// launches so small that nothing else hides it (IsSmall).
template <typename P, bool kActivated, bool kAhead = false>
struct ElementParams {};
// A scale and perhaps a shift for each element, of the row's type: the sample's own, at 16-byte
// addresses if the rows are (Lowering::kModulated). kAhead as above.
template <bool kAhead = false>
struct SampleParams {};
// One gamma and one beta for all of a row, or none.
struct RowParams {};
// All other parameters.
struct GeneralParams {};

template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kFloat32
                                  : std::is_same_v<T, double> ? DType::kFloat64
                                  : std::is_same_v<T, Half>   ? DType::kFloat16
                                                              : DType::kBFloat16;

// Whether the present parameters can be ElementParams of P.
template <typename P>
bool AreElementParams(const Launch& launch, const RowBatch& batch) {
  const auto fits = [](const ParamVector& param) {
    return param.data == nullptr ||
           (param.dtype == kDTypeOf<P> &&
            reinterpret_cast<std::uintptr_t>(param.data) % kVectorBytes == 0);
  };
  bool one_position = true;
  for (int i = 0; i < batch.segment_count; ++i) one_position &= batch.segments[i].spatial == 1;
  return one_position && batch.gamma.data != nullptr && fits(batch.gamma) && fits(batch.beta) &&
         (launch.spec.groups == 1 ||
          batch.channels_per_group * static_cast<std::int64_t>(sizeof(P)) % kVectorBytes == 0);
}

// Whether they are RowParams, in any type.
inline bool AreRowParams(const RowBatch& batch) {
  return batch.channels_per_group == 1 ||
         (batch.gamma.data == nullptr && batch.beta.data == nullptr);
}

// Whether this few warps leave the multiprocessors little to do but wait for one row each. Measured
// on an H200: 8 or 16 warps on a multiprocessor gain 0.5 to 0.9 us of 3; 32 lose. Rows between gaps
// have no kernels for it.
inline bool IsSmall(const Launch& launch, std::int64_t warps) {
  constexpr std::int64_t kWarpsOfMultiprocessor = 16;
  return warps <= kWarpsOfMultiprocessor * launch.limits.multiprocessors && !launch.gaps.any();
}

// Calls function(ElementParams<...>()), function(RowParams()) or function(GeneralParams()) for the
// launch's parameters. Rows of float64, which are not meant to be fast, always have GeneralParams.
template <typename T, typename Function>
auto WithParams(const Launch& launch, const RowBatch& batch, Function function) {
  if constexpr (std::is_same_v<T, double>) {
    return function(GeneralParams());
  } else {
    const bool activated = launch.spec.activation != Activation::kNone;
    if (AreElementParams<T>(launch, batch)) {
      return activated ? function(ElementParams<T, true>()) : function(ElementParams<T, false>());
    }
    if constexpr (sizeof(T) == 2) {
      if (AreElementParams<float>(launch, batch)) {
        return activated ? function(ElementParams<float, true>())
                         : function(ElementParams<float, false>());
      }
    }
    return AreRowParams(batch) ? function(RowParams()) : function(GeneralParams());
  }
}

template <typename Params>
inline constexpr bool kIsAhead = false;
template <typename P>
inline constexpr bool kIsAhead<ElementParams<P, false, true>> = true;
template <>
inline constexpr bool kIsAhead<SampleParams<true>> = true;

// Calls function(params). For a small launch of aligned rows, `warps` in all, SampleParams and
// ElementParams without an activation get kAhead.
template <bool kAligned, typename P, typename Function>
cudaError_t WithAhead(const Launch& launch, std::int64_t warps, ElementParams<P, false> params,
                      Function function) {
  if constexpr (kAligned) {
    if (IsSmall(launch, warps)) return function(ElementParams<P, false, true>());
  }
  return function(params);
}
template <bool kAligned, typename Function>
cudaError_t WithAhead(const Launch& launch, std::int64_t warps, SampleParams<> params,
                      Function function) {
  if constexpr (kAligned) {
    if (IsSmall(launch, warps)) return function(SampleParams<true>());
  }
  return function(params);
}
template <bool kAligned, typename Params, typename Function>
cudaError_t WithAhead(const Launch&, std::int64_t, Params params, Function function) {
  return function(params);
}

// kPerVector<T> elements of an element parameter, from an address that suits 16-byte loads.
template <typename T, typename P>
__device__ inline void LoadElementParams(const P* address,
                                         Accumulator<T> (&values)[kPerVector<T>]) {
  constexpr int kCount = kPerVector<T>;
  static_assert(kCount % kPerVector<P> == 0, "16-byte loads");
#pragma unroll
  for (int i = 0; i < kCount; i += kPerVector<P>) {
    Accumulator<P> part[kPerVector<P>];
    Unpack<P>(__ldg(reinterpret_cast<const uint4*>(address + i)), part);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) values[i + j] = static_cast<Accumulator<T>>(part[j]);
  }
}

// RowParams, loaded.
template <typename A>
struct RowParamValues {
  A gamma;
  A beta;

  __device__ RowParamValues(const RowBatch& batch, const Row& row)
      : gamma(LoadParam(batch.gamma, row.first_channel, A(1))),
        beta(LoadParam(batch.beta, row.first_channel, A(0))) {}
};

// The results of a row with RowParams.
template <typename T>
class RowResult {
 public:
  using A = Accumulator<T>;

  __device__ RowResult(const RowBatch& batch, const RowParamValues<A>& params,
                       const RowScale<A>& scale)
      : scale_(scale),
        factors_(scale_.Factors(params.gamma, params.beta)),
        activation_(batch.activation),
        leaky_slope_(batch.leaky_slope.As<A>()) {}

  template <Activation kActivation>
  __device__ Vector Of(const Vector& vector) const {
    A values[kPerVector<T>];
    Unpack<T>(vector, values);
#pragma unroll
    for (A& value : values) {
      value = Activate<T, kActivation>(scale_.ByChannel(value, factors_), leaky_slope_);
    }
    return Pack<T>(values);
  }
  // With the batch's activation.
  __device__ Vector Of(const Vector& vector) const {
    A values[kPerVector<T>];
    Unpack<T>(vector, values);
#pragma unroll
    for (A& value : values) value = scale_.ByChannel(value, factors_);
    Activate<T>(activation_, leaky_slope_, values);
    return Pack<T>(values);
  }

 private:
  const RunScale<T> scale_;
  const ChannelFactors<A> factors_;
  const Activation activation_;
  const A leaky_slope_;
};

// Packs a lane's vectors anew: otherwise the elements stay unpacked after the sums, in twice the
// registers.
template <int G>
__device__ inline void RepackAll(Vector (&vectors)[G]) {
#pragma unroll
  for (int i = 0; i < G; ++i) Repack(vectors[i]);
}

// WithActivation if the kernel has activations at all; otherwise function(...kNone...).
template <bool kActivated, typename Function>
__device__ inline void WithActivationIf(Activation activation, Function function) {
  if constexpr (kActivated) {
    WithActivation(activation, function);
  } else {
    function(std::integral_constant<Activation, Activation::kNone>());
  }
}

// ElementParams with kAhead, loaded: the vectors of gamma and beta for G vectors of T.
template <typename T, typename P, int G>
struct ElementParamValues {
  static constexpr int kParts = kPerVector<T> / kPerVector<P>;
  Vector gamma[G][kParts];
  Vector beta[G][kParts];

  __device__ void Unpacked(const Vector (&parts)[kParts],
                           Accumulator<T> (&values)[kPerVector<T>]) const {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      Accumulator<P> part[kPerVector<P>];
      Unpack<P>(parts[k], part);
#pragma unroll
      for (int j = 0; j < kPerVector<P>; ++j) {
        values[k * kPerVector<P> + j] = static_cast<Accumulator<T>>(part[j]);
      }
    }
  }
};

// SampleParams with kAhead, loaded: scale and shift in the places of gamma and beta.
template <typename T, int G>
struct SampleParamValues : ElementParamValues<T, T, G> {};

// One lane's part of a run of a row, for `width` lanes: G vectors, as memory.cuh assigns them. The
// run begins at byte `begin` of the row, and `bytes` of it exist (ClampToRun). Rows are whole
// vectors; if they are not kAligned, elements move one by one.
template <typename T, int G, bool kAligned = true>
class VectorTile {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ VectorTile(const Row& row, int begin, int bytes, int lane, int width)
      : row_(row),
        begin_(begin),
        bytes_(min(bytes, G * width * kVectorBytes)),
        lane_(lane),
        width_(width) {}

  __device__ void Load(Vector (&vectors)[G]) const {
    if constexpr (kAligned) {
      LoadRun<T, true>(row_.x + begin_, bytes_, lane_, width_, vectors);
    } else {
#pragma unroll
      for (int i = 0; i < G; ++i) {
        vectors[i] = LoadHead<T>(row_.x + begin_ + Offset(i), bytes_ - Offset(i));
      }
    }
  }

  // `statistics` are any, or, as a bool, whether they are centered.
  template <typename AnyStatistics>
  __device__ Moments<A> Sum(const Vector (&vectors)[G], AnyStatistics statistics) const {
    if constexpr (kSharedReference<T>) {
      return SumRun<T, true>(vectors, bytes_, lane_, width_, statistics);
    } else {
      return SumWholeVectors<T>(vectors, Whole(), statistics);
    }
  }
  // The same around the reference of `width` lanes.
  __device__ ReferenceSums<A> SumTogether(const Vector (&vectors)[G], bool centered) const {
    return SumWholeAround<T>(vectors, Whole(), width_, centered);
  }
  // The same around a given reference.
  __device__ ReferenceSums<A> SumTogetherAgain(Vector (&vectors)[G], A reference) const {
    ReferenceSums<A> sums = {reference};
    InTurn(vectors, [&](int i, const Vector& vector) {
      A values[kCount];
      Unpack<T>(vector, values);
#pragma unroll
      for (const A value : values) {
        if (i < Whole()) AddAgain(value, &sums);
      }
      return vector;
    });
    return sums;
  }

  // The parameters that can be loaded before the row's statistics are known; Finish takes them.
  template <typename Params>
  __device__ Params Ask(Params params, const RowBatch&) const {
    return params;
  }
  __device__ RowParamValues<A> Ask(RowParams, const RowBatch& batch) const { return {batch, row_}; }
  template <typename P>
  __device__ ElementParamValues<T, P, G> Ask(ElementParams<P, false, true>,
                                             const RowBatch& batch) const {
    ElementParamValues<T, P, G> params = {};
    const std::int64_t element =
        row_.first_channel + begin_ / static_cast<int>(sizeof(T)) + lane_ * kCount;
    AskFor<P>(static_cast<const P*>(batch.gamma.data) + element, params.gamma);
    if (batch.beta.data != nullptr) {
      AskFor<P>(static_cast<const P*>(batch.beta.data) + element, params.beta);
    }
    return params;
  }
  __device__ SampleParamValues<T, G> Ask(SampleParams<true>, const RowBatch&) const {
    SampleParamValues<T, G> params = {};
    AskFor<T>(reinterpret_cast<const T*>(row_.scale + begin_) + lane_ * kCount, params.gamma);
    if (row_.shift != nullptr) {
      AskFor<T>(reinterpret_cast<const T*>(row_.shift + begin_) + lane_ * kCount, params.beta);
    }
    return params;
  }

  // Turns the run into results and stores them; leaves the vectors in any state.
  template <typename P, bool kActivated>
  __device__ void Finish(ElementParams<P, kActivated>, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    RepackAll(vectors);
    WithActivationIf<kActivated>(batch.activation, [&](auto activation) {
      ScaleByElement<P, decltype(activation)::value>(batch, scale, vectors);
    });
  }

  template <typename P>
  __device__ void Finish(const ElementParamValues<T, P, G>& params, const RowBatch&,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    FinishAhead(params, scale, vectors, [](A gamma) { return gamma; });
  }
  __device__ void Finish(const SampleParamValues<T, G>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    FinishAhead(params, scale, vectors, [&](A own) { return batch.scale_offset + own; });
  }

  __device__ void Finish(SampleParams<>, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
#pragma unroll
    for (int i = 0; i < G; ++i) {
      const int offset = Offset(i);
      if (offset >= bytes_) continue;
      A g[kCount], b[kCount] = {}, values[kCount];
      Unpack<T>(LoadOfSample(row_.scale + begin_ + offset), g);
      if (row_.shift != nullptr) Unpack<T>(LoadOfSample(row_.shift + begin_ + offset), b);
      Unpack<T>(vectors[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] = run_scale.ByElement(values[j], batch.scale_offset + g[j], b[j]);
      }
      const Vector results = Pack<T>(values);
      if constexpr (kAligned) {
        StoreVector(row_.y + begin_ + offset, results);
      } else {
        StoreSpan<T>(row_.y + begin_ + offset, results, 0, kVectorBytes);
      }
    }
  }

  __device__ void Finish(RowParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    Finish(RowParamValues<A>(batch, row_), batch, scale, vectors);
  }
  __device__ void Finish(const RowParamValues<A>& params, const RowBatch& batch,
                         const RowScale<A>& scale, Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const RowResult<T> result(batch, params, scale);
    WithActivation(batch.activation, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < G; ++i) {
        const int offset = (i * width_ + lane_) * kVectorBytes;
        if (offset >= bytes_) continue;
        StoreVector(row_.y + begin_ + offset,
                    result.template Of<decltype(activation)::value>(vectors[i]));
      }
    });
  }

  __device__ void Finish(GeneralParams, const RowBatch& batch, const RowScale<A>& scale,
                         Vector (&vectors)[G]) const {
    RepackAll(vectors);
    const std::int64_t first = begin_ / static_cast<int>(sizeof(T));
    const RunEpilogue<T> epilogue(batch, row_, scale, first,
                                  first + bytes_ / static_cast<int>(sizeof(T)));
    const std::int64_t element = first + lane_ * kCount;
    if (epilogue.few_channels()) {
      const int of_first = epilogue.VectorsOfFirst(element, width_ * kCount, G);
      const auto common = [&](auto activation) {
#pragma unroll
        for (int i = 0; i < G; ++i) {
          vectors[i] = epilogue.template ApplyInChannel<decltype(activation)::value>(vectors[i],
                                                                                     i < of_first);
        }
      };
      WithCommonActivation(batch.activation, common, [&] {
        InTurn(vectors, [&](int i, const Vector& vector) {
          return epilogue.ApplyInChannel(vector, i < of_first);
        });
      });
    } else {
      InTurn(vectors, [&](int i, const Vector& vector) {
        if ((i * width_ + lane_) * kVectorBytes >= bytes_) return vector;
        return epilogue.Apply(vector, element + i * width_ * kCount, kCount);
      });
    }
    if constexpr (kAligned) {
      StoreRun<T, true>(row_.y + begin_, bytes_, lane_, width_, vectors);
    } else {
#pragma unroll
      for (int i = 0; i < G; ++i) {
        StoreSpan<T>(row_.y + begin_ + Offset(i), vectors[i], 0, bytes_ - Offset(i));
      }
    }
  }

 private:
  // The number of the lane's vectors that exist.
  __device__ int Whole() const { return ShareOfLane(bytes_ / kVectorBytes, lane_, width_); }

  // The bytes of the run before the lane's vector i.
  __device__ int Offset(int i) const { return (i * width_ + lane_) * kVectorBytes; }

  __device__ static Vector LoadOfSample(const char* address) {
    return kAligned ? __ldg(reinterpret_cast<const uint4*>(address))
                    : LoadHead<T>(address, kVectorBytes);
  }

  // The parameters of the lane's vectors that exist, from those of its first one on.
  template <typename P, int kParts>
  __device__ void AskFor(const P* first, Vector (&params)[G][kParts]) const {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      if ((i * width_ + lane_) * kVectorBytes >= bytes_) continue;
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        params[i][k] = __ldg(reinterpret_cast<const uint4*>(first + i * width_ * kCount) + k);
      }
    }
  }

  // With kAhead; factor(gamma) is an element's factor.
  template <typename P, typename Factor>
  __device__ void FinishAhead(const ElementParamValues<T, P, G>& params, const RowScale<A>& scale,
                              Vector (&vectors)[G], Factor factor) const {
    RepackAll(vectors);
    const RunScale<T> run_scale(scale);
#pragma unroll
    for (int i = 0; i < G; ++i) {
      A g[kCount], b[kCount], values[kCount];
      params.Unpacked(params.gamma[i], g);
      params.Unpacked(params.beta[i], b);
      Unpack<T>(vectors[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] = run_scale.ByElement(values[j], factor(g[j]), b[j]);
      }
      StoreVectorIf(Offset(i) < bytes_, row_.y + begin_ + Offset(i), Pack<T>(values));
    }
  }

  template <typename P, Activation kActivation>
  __device__ void ScaleByElement(const RowBatch& batch, const RowScale<A>& scale,
                                 Vector (&vectors)[G]) const {
    const int lane_element = begin_ / static_cast<int>(sizeof(T)) + lane_ * kCount;
    const P* const gamma = static_cast<const P*>(batch.gamma.data) + row_.first_channel;
    const P* const beta = static_cast<const P*>(batch.beta.data) + row_.first_channel;
    char* const y = row_.y + begin_ + lane_ * kVectorBytes;
    const bool has_beta = batch.beta.data != nullptr;
    const RunScale<T> run_scale(scale);
    const int whole = bytes_ / kVectorBytes;
#pragma unroll
    for (int i = 0; i < G; ++i) {
      if (i * width_ + lane_ >= whole) continue;
      A g[kCount], b[kCount] = {}, values[kCount];
      LoadElementParams<T>(gamma + (lane_element + i * width_ * kCount), g);
      if (has_beta) LoadElementParams<T>(beta + (lane_element + i * width_ * kCount), b);
      Unpack<T>(vectors[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] = Activate<T, kActivation>(run_scale.ByElement(values[j], g[j], b[j]),
                                             batch.leaky_slope.As<A>());
      }
      StoreVector(y + i * width_ * kVectorBytes, Pack<T>(values));
    }
  }

  const Row& row_;
  const int begin_;
  const int bytes_;
  const int lane_;
  const int width_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_VECTOR_TILE_CUH_

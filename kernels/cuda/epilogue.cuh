// The steps after a row's statistics are known: scale, shift, activation.

#ifndef NORMD_KERNELS_CUDA_EPILOGUE_CUH_
#define NORMD_KERNELS_CUDA_EPILOGUE_CUH_

#include <type_traits>

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/row_batch.cuh"

namespace normd::norm::cuda {

template <typename A>
__device__ inline A LoadParam(const ParamVector& param, std::int64_t index, A absent) {
  if (param.data == nullptr) return absent;
  switch (param.dtype) {
    case DType::kFloat32:
      return static_cast<A>(__ldg(static_cast<const float*>(param.data) + index));
    case DType::kFloat64:
      return static_cast<A>(__ldg(static_cast<const double*>(param.data) + index));
    case DType::kFloat16:
      return static_cast<A>(Widen(__ldg(static_cast<const Half*>(param.data) + index)));
    case DType::kBFloat16:
      return static_cast<A>(Widen(__ldg(static_cast<const BFloat*>(param.data) + index)));
  }
  return absent;
}

// Elements [index, index + N) of an array of P, of which `present` exist; the rest is left alone.
// Uses 16-byte loads where the address allows.
template <typename P, int N, typename A>
__device__ inline void LoadParamsOf(const void* data, std::int64_t index, int present,
                                    A (&values)[N]) {
  const P* const address = static_cast<const P*>(data) + index;
  constexpr int kPart = kPerVector<P> < N ? kPerVector<P> : N;
  const bool aligned = reinterpret_cast<std::uintptr_t>(address) % kVectorBytes == 0;
  if (kPart == kPerVector<P> && present == N && aligned) {
#pragma unroll
    for (int i = 0; i < N / kPart; ++i) {
      const Vector vector = __ldg(reinterpret_cast<const uint4*>(address) + i);
      Accumulator<P> part[kPerVector<P>];
      Unpack<P>(vector, part);
#pragma unroll
      for (int j = 0; j < kPart; ++j) values[i * kPart + j] = static_cast<A>(part[j]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < present) values[i] = static_cast<A>(Widen(__ldg(address + i)));
  }
}

// Elements [index, index + N) of a parameter of which `present` exist.
template <int N, typename A>
__device__ inline void LoadParams(const ParamVector& param, std::int64_t index, int present,
                                  A absent, A (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = absent;
  if (param.data == nullptr) return;
  switch (param.dtype) {
    case DType::kFloat32: LoadParamsOf<float>(param.data, index, present, values); break;
    case DType::kFloat64: LoadParamsOf<double>(param.data, index, present, values); break;
    case DType::kFloat16: LoadParamsOf<Half>(param.data, index, present, values); break;
    case DType::kBFloat16: LoadParamsOf<BFloat>(param.data, index, present, values); break;
  }
}

// 1 / value for a normal value, to one unit in the last place; above 2^126 zero.
__device__ inline float Reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// 2^value to two units in the last place; below 2^-126 zero.
__device__ inline float PowerOfTwo(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Double's exponential and error function have more than a hundred instructions each, so they are
// functions and not inlined. They are templates, so that only their callers compile them.
template <typename A>
__device__ __noinline__ A WideGate(A value, A argument) {
  return value / (1 + exp(-argument));
}
template <typename A>
__device__ __noinline__ A WideGeluErf(A value) {
  return value / 2 * (1 + erf(value * 0.70710678118654752440));
}

// v / (1 + exp(-u)), for results of more than 16 bits. Float results below 2^-119 are zero.
template <typename A>
__device__ inline A Gate(A value, A argument) {
  if constexpr (std::is_same_v<A, double>) {
    return WideGate(value, argument);
  } else {
    return value * Reciprocal(1 + expf(-argument));
  }
}

// The scaling of 16-bit results' factors, in powers of two. bfloat16 has float's exponents: scaled
// like this, no factor overflows or is flushed before the result rounds to zero. float16 cannot
// distinguish a flushed value from zero.
template <typename T>
inline constexpr float kShift = std::is_same_v<T, BFloat> ? 16.0f : 0.0f;
template <typename T>
inline constexpr float kShifted = std::is_same_v<T, BFloat> ? 0x1p-16f : 1.0f;

// value / (1 + 2^exponent) for 16-bit results, for which the fast exponential is exact enough, with
// the exponent reduced by kShift.
template <typename T>
__device__ inline float FastGate(float value, float exponent) {
  return value * kShifted<T> * Reciprocal(kShifted<T> + PowerOfTwo(exponent));
}

// v * Phi(v), Phi the distribution function of the normal distribution. In float
//   v * Phi(v) = max(v, 0) - |v| * Phi(-|v|),  Phi(-a) = 2^(a P(a) - 1),
// without a branch and without cancellation: log2(2 Phi(-a)) / a is so smooth that P is a
// polynomial. Its coefficients minimise the largest error of the result for a up to 9 (8); beyond,
// 2^(a P(a)) falls faster than the result. The error that it leaves is 4e-8 at most, or for results
// of float16 2.3e-7 and 2.2e-4 of the result. bfloat16, which has the tail down to a = 13.5, takes
// the coefficients that minimise the relative error up to there: 7.8e-4 of the result.
template <typename T, typename A>
__device__ inline A GeluErf(A v) {
  if constexpr (std::is_same_v<A, double>) {
    return WideGeluErf(v);
  } else {
    const float a = fabsf(v);
    float p;
    if constexpr (std::is_same_v<T, BFloat>) {
      p = fmaf(-2.818976554e-07f, a, 1.631725378e-05f);
      p = fmaf(p, a, -3.960598876e-04f);
      p = fmaf(p, a, 5.304460225e-03f);
      p = fmaf(p, a, -4.399035467e-02f);
      p = fmaf(p, a, -4.730151252e-01f);
      p = fmaf(p, a, -1.144091041e+00f);
    } else if constexpr (sizeof(T) == 2) {
      p = fmaf(-1.465066287e-06f, a, 5.422082782e-05f);
      p = fmaf(p, a, -8.756912284e-04f);
      p = fmaf(p, a, 8.318985190e-03f);
      p = fmaf(p, a, -5.364989637e-02f);
      p = fmaf(p, a, -4.586915886e-01f);
      p = fmaf(p, a, -1.151189165e+00f);
    } else {
      p = fmaf(-6.963705005e-09f, a, 2.778997270e-07f);
      p = fmaf(p, a, -4.564843174e-06f);
      p = fmaf(p, a, 3.848742539e-05f);
      p = fmaf(p, a, -1.477333429e-04f);
      p = fmaf(p, a, -2.753143883e-04f);
      p = fmaf(p, a, 7.287481489e-03f);
      p = fmaf(p, a, -5.267820008e-02f);
      p = fmaf(p, a, -4.591385847e-01f);
      p = fmaf(p, a, -1.151114697e+00f);
    }
    // Infinities give the plain formula's results: infinity, and NaN.
    const float factor = -fabsf(fminf(v, 1e30f)) * kShifted<T>;
    return fmaf(factor, PowerOfTwo(fmaf(p, a, kShift<T> - 1.0f)), fmaxf(v, 0.0f));
  }
}

template <typename T, Activation kActivation>
__device__ inline Accumulator<T> Activate(Accumulator<T> v, Accumulator<T> leaky_slope) {
  using A = Accumulator<T>;
  if constexpr (kActivation == Activation::kRelu) {
    return v < 0 ? A(0) : v;
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return v < 0 ? v * leaky_slope : v;
  } else if constexpr (kActivation == Activation::kSilu) {
    constexpr float kLog2E = 1.44269504088896340736f;
    if constexpr (std::is_same_v<T, BFloat>) {
      return FastGate<T>(v, Fma(v, -kLog2E, -kShift<T>));
    } else if constexpr (sizeof(T) == 2) {
      return FastGate<T>(v, v * -kLog2E);
    } else {
      return Gate(v, v);
    }
  } else if constexpr (kActivation == Activation::kGeluErf) {
    return GeluErf<T>(v);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which loses nothing where tanh(u) is near -1.
    if constexpr (sizeof(T) == 2) {
      // With the factor log2(e).
      const float slope = Fma(v * v, -0.102943240f, -2.30220819f);
      return FastGate<T>(v, Fma(v, slope, -kShift<T>));
    } else {
      return Gate(v, A(1.59576912160573071176) * Fma(A(0.044715) * v * v, v, v));
    }
  } else {
    return v;
  }
}

// Calls function(std::integral_constant<Activation, a>()) for the given activation. The switch is
// uniform over a launch.
template <typename Function>
__device__ inline void WithActivation(Activation activation, Function function) {
  switch (activation) {
    case Activation::kNone:
      function(std::integral_constant<Activation, Activation::kNone>());
      break;
    case Activation::kRelu:
      function(std::integral_constant<Activation, Activation::kRelu>());
      break;
    case Activation::kLeakyRelu:
      function(std::integral_constant<Activation, Activation::kLeakyRelu>());
      break;
    case Activation::kSilu:
      function(std::integral_constant<Activation, Activation::kSilu>());
      break;
    case Activation::kGeluErf:
      function(std::integral_constant<Activation, Activation::kGeluErf>());
      break;
    case Activation::kGeluTanh:
      function(std::integral_constant<Activation, Activation::kGeluTanh>());
      break;
  }
}

// Calls common(constant) as WithActivation does for no activation and for SiLU, which follow a norm
// of channels most often. Calls rare() for the others, which then share their code.
template <typename Common, typename Rare>
__device__ inline void WithCommonActivation(Activation activation, Common common, Rare rare) {
  if (activation == Activation::kNone) {
    common(std::integral_constant<Activation, Activation::kNone>());
  } else if (activation == Activation::kSilu) {
    common(std::integral_constant<Activation, Activation::kSilu>());
  } else {
    rare();
  }
}

// Applies an activation to N values.
template <typename T, int N>
__device__ inline void Activate(Activation activation, Accumulator<T> leaky_slope,
                                Accumulator<T> (&values)[N]) {
  WithActivation(activation, [&](auto constant) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = Activate<T, decltype(constant)::value>(values[i], leaky_slope);
    }
  });
}

// Writes mean_out and rstd_out of row `index`, if they are wanted; one thread of a row calls it. It
// looks for the segment again, because to keep it would take registers.
template <typename A>
__device__ inline void WriteStatistics(const RowBatch& batch, std::uint32_t index,
                                       const RowScale<A>& scale) {
  if (!batch.statistics_out) return;
  const RowSegment& segment = FindSegment(batch, &index);
  if (segment.mean_out != nullptr) static_cast<A*>(segment.mean_out)[index] = scale.mean;
  if (segment.rstd_out != nullptr) static_cast<A*>(segment.rstd_out)[index] = scale.rstd;
}

// The factor and offset of a channel's elements: y = (x - mean) * factor + offset.
template <typename A>
struct ChannelFactors {
  A factor = 0;
  A offset = 0;
};

// y = (x - mean) * rstd * gamma + beta for a run of a row.
template <typename T>
class RunScale {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ explicit RunScale(const RowScale<A>& row)
      : mean_(row.mean), rstd_(row.rstd), shift_(-row.residue * row.rstd) {}

  // The mean's residue times infinity would be NaN.
  __device__ ChannelFactors<A> Factors(A gamma, A beta) const {
    return {rstd_ * gamma, isinf(gamma) ? beta : Fma(shift_, gamma, beta)};
  }
  __device__ A ByChannel(A value, const ChannelFactors<A>& factors) const {
    return Fma(value - mean_, factors.factor, factors.offset);
  }
  __device__ A ByElement(A value, A gamma, A beta) const {
    return Fma(Fma(value - mean_, rstd_, shift_), gamma, beta);
  }

 private:
  A mean_;
  A rstd_;
  A shift_;
};

// The epilogue of elements [begin, end) of a row: finds each element's gamma and beta.
template <typename T>
class RunEpilogue {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ RunEpilogue(const RowBatch& batch, const Row& row, const RowScale<A>& scale,
                         std::int64_t begin, std::int64_t end)
      : batch_(batch), row_(row), scale_(scale) {
    const bool absent = batch.gamma.data == nullptr && batch.beta.data == nullptr;
    const bool one_per_row = absent || batch.channels_per_group == 1;
    // A run after the row's end has no channel, and nothing to scale.
    const bool known = one_per_row || row.spatial == 1 || begin >= end;
    const std::int64_t first = known ? 0 : ChannelOf(begin);
    boundary_ = known ? end : min(end, (first + 1) * row.spatial);
    channels_ = one_per_row || (row.spatial > 1 && boundary_ == end) ? 1
                : row.spatial > 1 && boundary_ + row.spatial >= end  ? 2
                                                                     : 3;
    if (channels_ < 3) first_ = FactorsOf(first);
    second_ = channels_ == 2 ? FactorsOf(first + 1) : first_;
  }

  // Whether the run has one or two channels, and each whole vector only one of them.
  __device__ bool few_channels() const {
    return channels_ == 1 || (channels_ == 2 && row_.spatial % kCount == 0);
  }
  // With few channels: the number of the vectors at `element`, `element + stride`, ..., at most
  // `count`, that have the first channel; and the results of a vector of either.
  __device__ int VectorsOfFirst(std::int64_t element, int stride, int count) const {
    const std::int64_t before = min(boundary_ - element, std::int64_t{stride} * count);
    return channels_ == 1 ? count : (max(static_cast<int>(before), 0) + stride - 1) / stride;
  }
  template <Activation kActivation>
  __device__ Vector ApplyInChannel(const Vector& vector, bool is_first) const {
    const ChannelFactors<A> factors = is_first ? first_ : second_;
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = Activate<T, kActivation>(scale_.ByChannel(values[i], factors),
                                           batch_.leaky_slope.As<A>());
    }
    return Pack<T>(values);
  }

  // With the batch's activation.
  __device__ Vector ApplyInChannel(const Vector& vector, bool is_first) const {
    const ChannelFactors<A> factors = is_first ? first_ : second_;
    A values[kCount];
    Unpack<T>(vector, values);
#pragma unroll
    for (A& value : values) value = scale_.ByChannel(value, factors);
    Activate<T>(batch_.activation, batch_.leaky_slope.As<A>(), values);
    return Pack<T>(values);
  }

  // Turns the vector of elements [element, element + kCount) of the row, of which `present` exist,
  // into results. The others are undefined.
  __device__ Vector Apply(const Vector& vector, std::int64_t element, int present) const {
    A values[kCount];
    Unpack<T>(vector, values);
    Scale(element, present, values);
    if (batch_.activation != Activation::kNone) {
      Activate<T>(batch_.activation, batch_.leaky_slope.As<A>(), values);
    }
    return Pack<T>(values);
  }

 private:
  __device__ ChannelFactors<A> FactorsOf(std::int64_t channel) const {
    return scale_.Factors(LoadParam(batch_.gamma, row_.first_channel + channel, A(1)),
                          LoadParam(batch_.beta, row_.first_channel + channel, A(0)));
  }

  __device__ void Scale(std::int64_t element, int present, A (&values)[kCount]) const {
    if (channels_ == 1) {
#pragma unroll
      for (A& v : values) v = scale_.ByChannel(v, first_);
    } else if (channels_ == 2) {
      const auto before =
          static_cast<int>(max(std::int64_t{-1}, min(boundary_ - element, std::int64_t{kCount})));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = scale_.ByChannel(values[i], i < before ? first_ : second_);
      }
    } else if (row_.spatial == 1) {
      A gamma[kCount], beta[kCount];
      LoadParams(batch_.gamma, row_.first_channel + element, present, A(1), gamma);
      LoadParams(batch_.beta, row_.first_channel + element, present, A(0), beta);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = scale_.ByElement(values[i], gamma[i], beta[i]);
    } else if (present > 0) {
      ScaleByChannel(element, values);
    }
  }

  __device__ std::int64_t ChannelOf(std::int64_t element) const {
    return row_.elements < (std::int64_t{1} << 31)
               ? row_.spatial_divisor.Divide(static_cast<std::uint32_t>(element))
               : element / row_.spatial;
  }

  __device__ void ScaleByChannel(std::int64_t element, A (&values)[kCount]) const {
    std::int64_t channel = ChannelOf(element);
    std::int64_t end = (channel + 1) * row_.spatial;
    ChannelFactors<A> factors = FactorsOf(channel);
    if (element + kCount <= end) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = scale_.ByChannel(values[i], factors);
      return;
    }
    // Several channels in one vector are rare; without unrolling, the loop's code stays small.
    A each[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) each[i] = values[i];
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      if (element + i >= end && channel + 1 < batch_.channels_per_group) {
        factors = FactorsOf(++channel);
        end += row_.spatial;
      }
      each[i] = scale_.ByChannel(each[i], factors);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = each[i];
  }

  const RowBatch& batch_;
  const Row& row_;
  const RunScale<T> scale_;
  int channels_;           // The run's channels: 1, 2, or 3 for more, or one for each element.
  std::int64_t boundary_;  // Elements from here on have the second channel.
  ChannelFactors<A> first_;
  ChannelFactors<A> second_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_EPILOGUE_CUH_

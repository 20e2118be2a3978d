// The activations on vectors. Included once per target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_ACTIVATION_INL_H_
#undef NORMD_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define NORMD_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include <cmath>
#include <type_traits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/loop_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#undef NORMD_SCALED_BY_POWERS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define NORMD_SCALED_BY_POWERS 1
#else
#define NORMD_SCALED_BY_POWERS 0
#endif

#if NORMD_SCALED_BY_POWERS
// 2^f times 2^n. AVX-512 has the last step as one instruction that neither overflows nor loses
// results below the smallest normal number. Both are minimax polynomials of 2^f's relative error.
//
// exp(x) for x <= 0 with a relative error of 6e-6 + 1e-7 |x|, which 16-bit results do not show. The
// exponent x log2(e) is rounded once, and its fraction in [0, 1) goes into a polynomial with an
// error of 2.6e-6.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> ShortExp(hn::Vec<hn::ScalableTag<float>> x) {
  const hn::ScalableTag<float> d;
  const auto t = hn::Mul(x, hn::Set(d, 1.44269504f));
  const decltype(t) f{_mm512_reduce_ps(t.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  auto p = hn::Set(d, 0.01353417f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.05201146f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24144276f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.69300383f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.00000259f));
  return decltype(t){_mm512_scalef_ps(p.raw, t.raw)};  // The instruction takes floor(t).
}

// The same within 2 units in the last place. NaN gives the least result.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> LongExp(hn::Vec<hn::ScalableTag<float>> x) {
  const hn::ScalableTag<float> d;
  x = hn::Max(x, hn::Set(d, -200.0f));
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  // log2(e) in two parts: the first product minus n is exact but for its one rounding.
  auto f = hn::MulSub(x, hn::Set(d, 1.44269504f), n);
  f = hn::MulAdd(x, hn::Set(d, 1.92596303e-8f), f);
  auto p = hn::Set(d, 1.53458116e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.33999312e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.61848896e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55032878e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40226469e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93147206e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return decltype(n){_mm512_scalef_ps(p.raw, n.raw)};
}
#endif

// The accuracy of a float32 result: its own, or enough for rounding to a 16-bit type.
enum class Precision { kFloat32, kHalf };

template <class Format>
inline constexpr Precision PrecisionFor = kIsHalf<Format> ? Precision::kHalf : Precision::kFloat32;

// exp(x) for x <= 0.
template <Precision kPrecision, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfNegative(D d, V x) {
#if NORMD_SCALED_BY_POWERS
  if constexpr (std::is_same_v<hn::TFromD<D>, float>) {
    if constexpr (kPrecision == Precision::kHalf) return ShortExp(x);
    return LongExp(x);
  }
#endif
  return hn::Exp(d, x);
}

// v / (1 + exp(-w)): SiLU, and with another w the tanh form of GELU. For negative w it is computed
// as v exp(w) / (1 + exp(w)), so that the exponential never overflows and the result keeps its
// relative accuracy down to the smallest numbers.
template <Precision kPrecision = Precision::kFloat32, class D, class V = hn::Vec<D>>
HWY_INLINE V TimesSigmoid(D d, V v, V w) {
  using T = hn::TFromD<D>;
  const V e = ExpOfNegative<kPrecision>(d, hn::Neg(hn::Abs(w)));
  const V numerator = hn::IfThenElse(hn::Lt(w, hn::Zero(d)), hn::Mul(v, e), v);
  return hn::Div(numerator, hn::Add(hn::Set(d, T{1}), e));
}

// The standard normal distribution function's upper tail at t >= 0, with a relative error below
// 1e-6 for t < 6 (its exponential rounds t^2 / 2) and an absolute one below 2e-7: exp(-t^2 / 2)
// times a minimax polynomial in (t - 3) / (t + 3), fitted to erfcx(t / sqrt(2)) / 2 on [0, 16].
template <Precision kPrecision, class D, class V = hn::Vec<D>>
HWY_INLINE V NormalTail(D d, V t) {
  constexpr float kCoefficients[] = {
      5.17471162e-05f, 0.000113547707f, -0.000337596372f, -0.000981913297f, 0.00290384027f,
      0.00613154657f,  -0.0462131687f,  0.123225078f,     -0.20640263f,     0.121513948f};
  const V three = hn::Set(d, 3.0f);
  const V u = hn::Div(hn::Sub(t, three), hn::Add(t, three));
  V p = hn::Zero(d);
  for (const float c : kCoefficients) p = hn::MulAdd(p, u, hn::Set(d, c));
  return hn::Mul(p, ExpOfNegative<kPrecision>(d, hn::Mul(hn::Mul(t, t), hn::Set(d, -0.5f))));
}

// v Phi(v), without the cancellation of 1 + erf for negative v.
template <Precision kPrecision, class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErf(D d, V v) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, double>) {
    // Lane by lane: float64 is used for its accuracy, which libm's erfc has.
    HWY_ALIGN double lanes[hn::MaxLanes(hn::ScalableTag<double>())];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      lanes[i] *= 0.5 * std::erfc(-lanes[i] * M_SQRT1_2);
    }
    return hn::Load(d, lanes);
  } else {
    const V q = NormalTail<kPrecision>(d, hn::Min(hn::Abs(v), hn::Set(d, 16.0f)));
    const V one = hn::Set(d, 1.0f);
    return hn::Mul(v, hn::IfThenElse(hn::Lt(v, hn::Zero(d)), q, hn::Sub(one, q)));
  }
}

template <Precision kPrecision, class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V v) {
  using T = hn::TFromD<D>;
  // v / 2 (1 + tanh(z)) = v / (1 + exp(-2 z))
  const V cubic = hn::Mul(hn::Set(d, static_cast<T>(0.044715)), hn::Mul(v, v));
  const V inner = hn::MulAdd(cubic, v, v);
  return TimesSigmoid<kPrecision>(d, v,
                                  hn::Mul(hn::Set(d, static_cast<T>(1.5957691216057307)), inner));
}

// Calls `use` with an exponential activation as a function of one vector.
template <Precision kPrecision, class D, class Use>
HWY_INLINE void WithExponential(D d, Activation activation, const Use& use) {
  using V = hn::Vec<D>;
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kLeakyRelu: return;
    case Activation::kSilu:
      return use([=](V v) HWY_ATTR { return TimesSigmoid<kPrecision>(d, v, v); });
    case Activation::kGeluErf: return use([=](V v) HWY_ATTR { return GeluErf<kPrecision>(d, v); });
    case Activation::kGeluTanh:
      return use([=](V v) HWY_ATTR { return GeluTanh<kPrecision>(d, v); });
  }
}

// Not inlined: this code is long, and many loops contain it.
template <Precision kPrecision, class T>
HWY_NOINLINE void ActivateOne(T* HWY_RESTRICT values, Activation activation) {
  const hn::ScalableTag<T> d;
  WithExponential<kPrecision>(
      d, activation, [=](const auto& f) HWY_ATTR { hn::Store(f(hn::Load(d, values)), d, values); });
}

template <Precision kPrecision, class T>
HWY_NOINLINE void ActivateFour(T* HWY_RESTRICT values, Activation activation) {
  const hn::ScalableTag<T> d;
  const std::size_t n = hn::Lanes(d);
  WithExponential<kPrecision>(d, activation, [=](const auto& f) HWY_ATTR {
    const auto v0 = f(hn::Load(d, values));
    const auto v1 = f(hn::Load(d, values + n));
    const auto v2 = f(hn::Load(d, values + 2 * n));
    const auto v3 = f(hn::Load(d, values + 3 * n));
    hn::Store(v0, d, values);
    hn::Store(v1, d, values + n);
    hn::Store(v2, d, values + 2 * n);
    hn::Store(v3, d, values + 3 * n);
  });
}

inline bool HasExponential(Activation activation) {
  return activation != Activation::kNone && activation != Activation::kRelu &&
         activation != Activation::kLeakyRelu;
}

// The other activations. A comparison with a NaN is false, so a NaN passes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Rectify(D d, V v, const Epilogue& epilogue) {
  const V zero = hn::Zero(d);
  if (epilogue.activation == Activation::kRelu) return hn::IfThenZeroElse(hn::Lt(v, zero), v);
  if (epilogue.activation == Activation::kNone) return v;
  const V slope = hn::Set(d, static_cast<hn::TFromD<D>>(epilogue.leaky_slope));
  return hn::IfThenElse(hn::Lt(v, zero), hn::Mul(v, slope), v);
}

template <Precision kPrecision = Precision::kFloat32, class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, V v, const Epilogue& epilogue) {
  using T = hn::TFromD<D>;
  if (!HasExponential(epilogue.activation)) return Rectify(d, v, epilogue);
  HWY_ALIGN T values[hn::MaxLanes(hn::ScalableTag<T>())];
  hn::Store(v, d, values);
  ActivateOne<kPrecision>(values, epilogue.activation);
  return hn::Load(d, values);
}

// Four vectors at once wait less for one another than one by one.
template <Precision kPrecision = Precision::kFloat32, class D, class V = hn::Vec<D>>
HWY_INLINE void Activate(D d, V& v0, V& v1, V& v2, V& v3, const Epilogue& epilogue) {
  using T = hn::TFromD<D>;
  if (!HasExponential(epilogue.activation)) {
    v0 = Rectify(d, v0, epilogue);
    v1 = Rectify(d, v1, epilogue);
    v2 = Rectify(d, v2, epilogue);
    v3 = Rectify(d, v3, epilogue);
    return;
  }
  const std::size_t n = hn::Lanes(d);
  HWY_ALIGN T values[4 * hn::MaxLanes(hn::ScalableTag<T>())];
  hn::Store(v0, d, values);
  hn::Store(v1, d, values + n);
  hn::Store(v2, d, values + 2 * n);
  hn::Store(v3, d, values + 3 * n);
  ActivateFour<kPrecision>(values, epilogue.activation);
  v0 = hn::Load(d, values);
  v1 = hn::Load(d, values + n);
  v2 = hn::Load(d, values + 2 * n);
  v3 = hn::Load(d, values + 3 * n);
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_ACTIVATION_INL_H_

// The elementwise pass: affine, activation, rounding, stores. Included once per target by
// foreach_target.h.

#if defined(NORMD_KERNELS_CPU_APPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_APPLY_INL_H_
#undef NORMD_KERNELS_CPU_APPLY_INL_H_
#else
#define NORMD_KERNELS_CPU_APPLY_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/simd_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What `center` loses in Acc, as a shift: the difference from the mean keeps double's accuracy at
// the price of float's.
template <class Acc>
HWY_INLINE double LostCenter(double center, double scale) {
  const double lost = static_cast<double>(static_cast<Acc>(center)) - center;
  return std::isfinite(lost) ? lost * scale : 0.0;
}

// Each Map below turns vector v of elements [i, i + Lanes) of a run into the value before the
// activation; Part does it where only n lanes exist.

template <class Format>
class AffineMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit AffineMap(const Affine& a)
      : center_(hn::Set(D(), static_cast<Acc>(a.center))),
        scale_(hn::Set(D(), static_cast<Acc>(a.scale))),
        shift_(hn::Set(D(), static_cast<Acc>(a.shift + LostCenter<Acc>(a.center, a.scale)))) {}

  HWY_INLINE V Full(V v, std::int64_t) { return hn::MulAdd(hn::Sub(v, center_), scale_, shift_); }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t) { return Full(v, i); }

 private:
  V center_;
  V scale_;
  V shift_;
};

template <class Format>
class ElementMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;
  using AccFormat = std::conditional_t<std::is_same_v<Acc, double>, Float64, Float32>;

  HWY_INLINE explicit ElementMap(const ElementAffine& a)
      : row_({a.center, a.scale, 0}),
        gamma_(static_cast<const Acc*>(a.gamma)),
        beta_(static_cast<const Acc*>(a.beta)) {}

  HWY_INLINE V Full(V v, std::int64_t i) {
    const V gamma = gamma_ == nullptr ? hn::Set(D(), Acc{1}) : hn::LoadU(D(), gamma_ + i);
    const V beta = beta_ == nullptr ? hn::Zero(D()) : hn::LoadU(D(), beta_ + i);
    return hn::MulAdd(row_.Full(v, i), gamma, beta);
  }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) {
    const V gamma =
        gamma_ == nullptr ? hn::Set(D(), Acc{1}) : LoadPart(AccFormat(), D(), gamma_ + i, n);
    const V beta = beta_ == nullptr ? hn::Zero(D()) : LoadPart(AccFormat(), D(), beta_ + i, n);
    return hn::MulAdd(row_.Full(v, i), gamma, beta);
  }

 private:
  AffineMap<Format> row_;
  const Acc* gamma_;
  const Acc* beta_;
};

// Relies on being asked for consecutive elements.
template <class Format>
class CyclicMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit CyclicMap(const CyclicAffine& a)
      : center_(static_cast<const Acc*>(a.center)),
        scale_(static_cast<const Acc*>(a.scale)),
        shift_(static_cast<const Acc*>(a.shift)),
        period_(a.period),
        phase_(a.phase) {}

  HWY_INLINE V Full(V v, std::int64_t i) { return Part(v, i, hn::Lanes(D())); }
  HWY_INLINE V Part(V v, std::int64_t, std::size_t n) {
    const V result = hn::MulAdd(hn::Sub(v, hn::LoadU(D(), center_ + phase_)),
                                hn::LoadU(D(), scale_ + phase_), hn::LoadU(D(), shift_ + phase_));
    phase_ += static_cast<std::int64_t>(n);
    if (phase_ >= period_) phase_ -= period_;
    return result;
  }

 private:
  const Acc* center_;
  const Acc* scale_;
  const Acc* shift_;
  std::int64_t period_;
  std::int64_t phase_;
};

// kActivated keeps the activation's code out of the loop that needs none.
template <class Format, bool kActivated, class Map>
HWY_INLINE void Transform(const Run& run, Map map) {
  using Lane = typename Format::Lane;
  const Format format;
  const AccTag<Format> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* x = static_cast<const Lane*>(run.x);
  auto* y = static_cast<Lane*>(run.y);
  const auto finish = [&](auto v) HWY_ATTR {
    if constexpr (kActivated) return Activate(d, v, run.epilogue);
    return v;
  };
  const auto part = [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const std::size_t count = static_cast<std::size_t>(n);
    const auto v = finish(map.Part(LoadPart(format, d, x + i, count), i, count));
    StorePart(format, d, v, y + i, count);
  };
  const auto full = [&](std::int64_t i)
                        HWY_ATTR { return finish(map.Full(Load(format, d, x + i), i)); };
  std::int64_t i = 0;
  if (run.stream) {
    const std::size_t alignment = StreamAlignment(d);
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(y) % alignment;
    std::int64_t head =
        beyond == 0 ? 0 : static_cast<std::int64_t>((alignment - beyond) / sizeof(Lane));
    for (head = std::min(head, run.count); head >= lanes; head -= lanes, i += lanes) {
      Store(format, d, full(i), y + i);
    }
    if (head > 0) part(i, head);
    i += head;
    for (; i + 4 * lanes <= run.count; i += 4 * lanes) {
      const auto v0 = full(i);
      const auto v1 = full(i + lanes);
      const auto v2 = full(i + 2 * lanes);
      const auto v3 = full(i + 3 * lanes);
      StreamPair(format, d, v0, v1, y + i);
      StreamPair(format, d, v2, v3, y + i + 2 * lanes);
    }
  } else {
    for (; i + 4 * lanes <= run.count; i += 4 * lanes) {
      const auto v0 = full(i);
      const auto v1 = full(i + lanes);
      const auto v2 = full(i + 2 * lanes);
      const auto v3 = full(i + 3 * lanes);
      Store(format, d, v0, y + i);
      Store(format, d, v1, y + i + lanes);
      Store(format, d, v2, y + i + 2 * lanes);
      Store(format, d, v3, y + i + 3 * lanes);
    }
  }
  for (; i + lanes <= run.count; i += lanes) Store(format, d, full(i), y + i);
  if (i < run.count) part(i, run.count - i);
}

template <class Format, class Map>
HWY_INLINE void TransformRun(const Run& run, const Map& map) {
  if (run.epilogue.activation == Activation::kNone) {
    Transform<Format, false>(run, map);
  } else {
    Transform<Format, true>(run, map);
  }
}

template <class Format>
void Apply(const Run& run, const Affine& affine) {
  TransformRun<Format>(run, AffineMap<Format>(affine));
}

template <class Format>
void ApplyElements(const Run& run, const ElementAffine& affine) {
  TransformRun<Format>(run, ElementMap<Format>(affine));
}

template <class Format>
void ApplyCyclic(const Run& run, const CyclicAffine& affine) {
  TransformRun<Format>(run, CyclicMap<Format>(affine));
}

}  // namespace HWY_NAMESPACE
}  // namespace norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_APPLY_INL_H_

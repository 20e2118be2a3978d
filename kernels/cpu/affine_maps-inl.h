// Maps from elements to normalized values, on vectors. Included once per target by
// foreach_target.h.

#if defined(NORMD_KERNELS_CPU_AFFINE_MAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_AFFINE_MAPS_INL_H_
#undef NORMD_KERNELS_CPU_AFFINE_MAPS_INL_H_
#else
#define NORMD_KERNELS_CPU_AFFINE_MAPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/buffer-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/stage_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Each Map turns vector v of elements [i, i + Lanes) of a run into the value before the activation;
// Part does so where only n lanes exist.

template <class Format>
class AffineMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit AffineMap(const Affine& a)
      : AffineMap(a, static_cast<Acc>(CenterFactor<Acc>(a.center))) {}

  HWY_INLINE V Full(V v, std::int64_t) {
    return hn::MulAdd(hn::MulSub(v, factor_, center_), scale_, shift_);
  }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t) { return Full(v, i); }

 private:
  HWY_INLINE AffineMap(const Affine& a, Acc factor)
      : factor_(hn::Set(D(), factor)),
        center_(hn::Set(D(), static_cast<Acc>(a.center) * factor)),
        // Factors are 1 or 1/2.
        scale_(hn::Set(D(), static_cast<Acc>(factor == 1 ? a.scale : 2 * a.scale))),
        shift_(hn::Set(D(), static_cast<Acc>(a.shift + LostShift<Acc>(a.center, a.scale)))) {
    if (HWY_UNLIKELY(a.input_factor != 1)) {
      factor_ = hn::Set(D(), static_cast<Acc>(a.input_factor));
    }
  }

  V factor_;
  V center_;
  V scale_;
  V shift_;
};

// What is known of a parameter when the loop is compiled.
enum class Presence { kAbsent, kPresent, kEither };

template <Presence kPresence>
HWY_INLINE bool Has(const void* param) {
  return kPresence == Presence::kEither ? param != nullptr : kPresence == Presence::kPresent;
}

// The map without a sample's own scale and shift.
template <class Format, Presence kGamma = Presence::kEither, Presence kBeta = Presence::kEither>
class ElementMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit ElementMap(const ElementAffine& a)
      : row_({a.center, a.scale, 0, a.input_factor}),
        gamma_(static_cast<const Acc*>(a.gamma)),
        beta_(static_cast<const Acc*>(a.beta)) {}

  HWY_INLINE V Full(V v, std::int64_t i) { return Map(v, i, FullLoader<Format>()); }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) { return Map(v, i, PartLoader<Format>{n}); }

 private:
  template <class Loader>
  HWY_INLINE V Map(V v, std::int64_t i, const Loader& load) {
    const V gamma = Has<kGamma>(gamma_) ? load.Buffer(gamma_ + i) : hn::Set(D(), Acc{1});
    const V beta = Has<kBeta>(beta_) ? load.Buffer(beta_ + i) : hn::Zero(D());
    return hn::MulAdd(row_.Full(v, i), gamma, beta);
  }

  AffineMap<Format> row_;
  const Acc* gamma_;
  const Acc* beta_;
};

// kAffine applies to gamma and beta, kModulation to the sample's scale and shift.
template <class Format, Presence kAffine = Presence::kEither,
          Presence kModulation = Presence::kEither>
class ModulatedMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;
  using Lane = typename Format::Lane;

  HWY_INLINE explicit ModulatedMap(const ElementAffine& a)
      : row_({a.center, a.scale, 0, a.input_factor}),
        scale_offset_(hn::Set(D(), static_cast<Acc>(a.scale_offset))),
        gamma_(static_cast<const Acc*>(a.gamma)),
        beta_(static_cast<const Acc*>(a.beta)),
        scale_(static_cast<const Lane*>(a.sample_scale)),
        shift_(static_cast<const Lane*>(a.sample_shift)) {}

  HWY_INLINE V Full(V v, std::int64_t i) { return Map(v, i, FullLoader<Format>()); }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) { return Map(v, i, PartLoader<Format>{n}); }

 private:
  template <class Loader>
  HWY_INLINE V Map(V v, std::int64_t i, const Loader& load) {
    V factor = Has<kModulation>(scale_) ? hn::Add(load.Memory(scale_ + i), scale_offset_)
                                        : hn::Set(D(), Acc{1});
    V offset = Has<kModulation>(shift_) ? load.Memory(shift_ + i) : hn::Zero(D());
    if (Has<kAffine>(beta_)) offset = hn::MulAdd(load.Buffer(beta_ + i), factor, offset);
    if (Has<kAffine>(gamma_)) factor = hn::Mul(load.Buffer(gamma_ + i), factor);
    return hn::MulAdd(row_.Full(v, i), factor, offset);
  }

  AffineMap<Format> row_;
  V scale_offset_;
  const Acc* gamma_;
  const Acc* beta_;
  const Lane* scale_;
  const Lane* shift_;
};

// Requires that it is called for consecutive elements.
template <class Format>
class CyclicMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit CyclicMap(const CyclicAffine& a)
      : factor_(hn::Set(D(), static_cast<Acc>(a.factor))),
        center_(static_cast<const Acc*>(a.center)),
        scale_(static_cast<const Acc*>(a.scale)),
        shift_(static_cast<const Acc*>(a.shift)),
        period_(a.period),
        phase_(a.phase) {}

  HWY_INLINE V Full(V v, std::int64_t i) { return Part(v, i, hn::Lanes(D())); }
  HWY_INLINE V Part(V v, std::int64_t, std::size_t n) {
    const V result = hn::MulAdd(hn::MulSub(v, factor_, hn::LoadU(D(), center_ + phase_)),
                                hn::LoadU(D(), scale_ + phase_), hn::LoadU(D(), shift_ + phase_));
    phase_ += static_cast<std::int64_t>(n);
    if (phase_ >= period_) phase_ -= period_;
    return result;
  }

 private:
  V factor_;
  const Acc* center_;
  const Acc* scale_;
  const Acc* shift_;
  std::int64_t period_;
  std::int64_t phase_;
};

// The map of one line of a tile.
template <class Format>
class LineMap {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit LineMap(const LineAffine& a)
      : factor_(hn::Set(D(), static_cast<Acc>(a.factor))),
        line_scale_(hn::Set(D(), static_cast<Acc>(a.line_scale))),
        line_shift_(hn::Set(D(), static_cast<Acc>(a.line_shift))),
        center_(static_cast<const Acc*>(a.center)),
        scale_(static_cast<const Acc*>(a.scale)),
        shift_(static_cast<const Acc*>(a.shift)) {}

  HWY_INLINE V Full(V v, std::int64_t i) const {
    return Map(v, hn::LoadU(D(), center_ + i), hn::LoadU(D(), scale_ + i),
               hn::LoadU(D(), shift_ + i));
  }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) const {
    const BufferFormat<Acc> format;
    return Map(v, LoadPart(format, D(), center_ + i, n), LoadPart(format, D(), scale_ + i, n),
               LoadPart(format, D(), shift_ + i, n));
  }

 private:
  HWY_INLINE V Map(V v, V center, V scale, V shift) const {
    const V u = hn::MulAdd(hn::MulSub(v, factor_, center), scale, shift);
    return hn::MulAdd(u, line_scale_, line_shift_);
  }

  V factor_;
  V line_scale_;
  V line_shift_;
  const Acc* center_;
  const Acc* scale_;
  const Acc* shift_;
};

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_AFFINE_MAPS_INL_H_

// The stages on vectors, between memory and a buffer of the accumulation type. Included once per
// target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_STAGES_INL_H_
#undef NORMD_KERNELS_CPU_STAGES_INL_H_
#else
#define NORMD_KERNELS_CPU_STAGES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/apply-inl.h"
#include "kernels/cpu/buffer-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/stage_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V CombineWith(D d, Combine combine, V v, V other) {
  switch (combine) {
    case Combine::kNone: return v;
    case Combine::kAdd: return hn::Add(v, other);
    case Combine::kMultiply: return hn::Mul(v, other);
    case Combine::kMultiplySilu: return hn::Mul(v, TimesSigmoid(d, other, other));
    // The exponential loses a NaN, which v brings back only where it is one too.
    case Combine::kMultiplySigmoid:
      return hn::IfThenElse(hn::IsNaN(other), other, TimesSigmoid(d, v, other));
  }
  return v;
}

// v as memory would have it.
template <class Format, class D, class V = hn::Vec<D>>
HWY_INLINE V Round(Format format, D d, V v) {
  if constexpr (std::is_base_of_v<BFloat16, Format>) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::And(RoundToUpperHalf(d, v), hn::Set(du, 0xFFFF0000u)));
  } else if constexpr (kIsHalf<Format>) {
    return Widen(format, d, Narrow(format, d, v));
  } else {
    return v;
  }
}

// A vector of an InputRun, however much of it exists: Loader says how lanes are read. kSumOnly: it
// is x, or x and a residual, and the compiler need not look for more.
template <class Format, bool kSumOnly>
class InputLine {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Lane = typename Format::Lane;
  using Acc = typename Format::Acc;

  HWY_INLINE explicit InputLine(const InputRun& run)
      : run_(run),
        x_(static_cast<const Lane*>(run.x)),
        residual_(static_cast<const Lane*>(run.residual)),
        other_(static_cast<const Lane*>(run.other)),
        bias_(static_cast<const Acc*>(run.bias)),
        gate_(static_cast<const Acc*>(run.gate)) {}

  template <class Loader>
  HWY_INLINE V At(std::int64_t i, const Loader& load) const {
    const D d;
    V v = load.Memory(x_ + i);
    if constexpr (kSumOnly) {
      if (residual_ != nullptr) v = hn::Add(v, load.Memory(residual_ + i));
      return run_.rounded ? Round(Format(), d, v) : v;
    }
    if (bias_ != nullptr) {
      v = hn::Add(v, run_.per_element ? load.Buffer(bias_ + i) : hn::Set(d, *bias_));
    }
    if (gate_ != nullptr) {
      v = hn::Mul(v, run_.per_element ? load.Buffer(gate_ + i) : hn::Set(d, *gate_));
    }
    if (residual_ != nullptr) v = hn::Add(v, load.Memory(residual_ + i));
    if (other_ != nullptr) v = CombineWith(d, run_.combine, v, load.Memory(other_ + i));
    return run_.rounded ? Round(Format(), d, v) : v;
  }

 private:
  const InputRun& run_;
  const Lane* x_;
  const Lane* residual_;
  const Lane* other_;
  const Acc* bias_;
  const Acc* gate_;
};

template <class Format>
struct FullLoader {
  HWY_INLINE hn::Vec<AccTag<Format>> Memory(const typename Format::Lane* p) const {
    return Load(Format(), AccTag<Format>(), p);
  }
  HWY_INLINE hn::Vec<AccTag<Format>> Buffer(const typename Format::Acc* p) const {
    return hn::LoadU(AccTag<Format>(), p);
  }
};

template <class Format>
struct PartLoader {
  std::size_t count;

  HWY_INLINE hn::Vec<AccTag<Format>> Memory(const typename Format::Lane* p) const {
    return LoadPart(Format(), AccTag<Format>(), p, count);
  }
  HWY_INLINE hn::Vec<AccTag<Format>> Buffer(const typename Format::Acc* p) const {
    return LoadPart(BufferFormat<typename Format::Acc>(), AccTag<Format>(), p, count);
  }
};

template <class Format, bool kSumOnly>
HWY_INLINE void ReadLine(const InputRun& run, void* buffer) {
  using Acc = typename Format::Acc;
  const AccTag<Format> d;
  const InputLine<Format, kSumOnly> line(run);
  auto* v = static_cast<Acc*>(buffer);
  auto* sum = static_cast<typename Format::Lane*>(run.sum);
  ForVectors(
      d, run.count,
      [&](std::int64_t i) HWY_ATTR {
        const auto value = line.At(i, FullLoader<Format>());
        hn::StoreU(value, d, v + i);
        if (sum != nullptr) Store(Format(), d, value, sum + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto value = line.At(i, PartLoader<Format>{n});
        StorePart(BufferFormat<Acc>(), d, value, v + i, n);
        if (sum != nullptr) StorePart(Format(), d, value, sum + i, n);
      });
}

template <class Format>
void Read(const InputRun& run, void* buffer) {
  if (run.bias == nullptr && run.gate == nullptr && run.other == nullptr) {
    ReadLine<Format, true>(run, buffer);
  } else {
    ReadLine<Format, false>(run, buffer);
  }
}

template <class Format>
void Join(void* buffer, const void* other, Combine combine, std::int64_t count) {
  using Acc = typename Format::Acc;
  const AccTag<Format> d;
  auto* v = static_cast<Acc*>(buffer);
  const auto* with = static_cast<const typename Format::Lane*>(other);
  ForVectors(
      d, count,
      [&](std::int64_t i) HWY_ATTR {
        hn::StoreU(CombineWith(d, combine, hn::LoadU(d, v + i), Load(Format(), d, with + i)), d,
                   v + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto part = LoadPart(BufferFormat<Acc>(), d, v + i, n);
        StorePart(BufferFormat<Acc>(), d,
                  CombineWith(d, combine, part, LoadPart(Format(), d, with + i, n)), v + i, n);
      });
}

// A map of apply-inl.h.
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

// The activation, and what joins.
template <class Format>
class JoinAfter {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit JoinAfter(const StageRun& run)
      : epilogue_(run.epilogue),
        combine_(run.combine),
        other_(static_cast<const typename Format::Lane*>(run.other)) {}
  HWY_INLINE void Four(V& v0, V& v1, V& v2, V& v3, std::int64_t i) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
    Activate(D(), v0, v1, v2, v3, epilogue_);
    v0 = Joined(v0, i);
    v1 = Joined(v1, i + lanes);
    v2 = Joined(v2, i + 2 * lanes);
    v3 = Joined(v3, i + 3 * lanes);
  }
  HWY_INLINE V Full(V v, std::int64_t i) const { return Joined(Activate(D(), v, epilogue_), i); }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) const {
    const V other = LoadPart(Format(), D(), other_ + i, n);
    return CombineWith(D(), combine_, Activate(D(), v, epilogue_), other);
  }

 private:
  HWY_INLINE V Joined(V v, std::int64_t i) const {
    return CombineWith(D(), combine_, v, Load(Format(), D(), other_ + i));
  }

  const Epilogue epilogue_;
  const Combine combine_;
  const typename Format::Lane* const other_;
};

template <class Source, class Format, class Map>
HWY_INLINE void StageTransform(const StageRun& run, const Map& map) {
  if (run.combine == Combine::kNone) {
    TransformRun<Source, Format>(run, map);
  } else {
    TransformAll<Source, Format, JoinAfter<Format>>(run, map);
  }
}

template <class Format, class Map>
HWY_INLINE void StageTransformFrom(const StageRun& run, const Map& map) {
  using Buffer = BufferFormat<typename Format::Acc>;
  if constexpr (!std::is_same_v<Buffer, Format>) {
    if (run.from_buffer) return StageTransform<Buffer, Format>(run, map);
  }
  StageTransform<Format, Format>(run, map);
}

template <class Format>
void StageApply(const StageRun& run, const Affine& affine) {
  StageTransformFrom<Format>(run, AffineMap<Format>(affine));
}

template <class Format>
void StageApplyElements(const StageRun& run, const ElementAffine& affine) {
  StageTransformFrom<Format>(run, ElementMap<Format>(affine));
}

template <class Format>
void StageApplyLine(const StageRun& run, const LineAffine& affine) {
  StageTransformFrom<Format>(run, LineMap<Format>(affine));
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_STAGES_INL_H_

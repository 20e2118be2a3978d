// Vector loads and stores between the accumulation type and each DType. Included once per target by
// foreach_target.h.

#if defined(NORMD_KERNELS_CPU_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_FORMATS_INL_H_
#undef NORMD_KERNELS_CPU_FORMATS_INL_H_
#else
#define NORMD_KERNELS_CPU_FORMATS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A DType: its form in memory (Lane) and in computation (Acc).
struct Float32 {
  using Lane = float;
  using Acc = float;
};
struct Float64 {
  using Lane = double;
  using Acc = double;
};
struct Float16 {
  using Lane = std::uint16_t;
  using Acc = float;
};
struct BFloat16 {
  using Lane = std::uint16_t;
  using Acc = float;
};

template <class Format>
using AccTag = hn::ScalableTag<typename Format::Acc>;
template <class D>
using HalfTag = hn::Rebind<std::uint16_t, D>;
template <class Format>
constexpr bool kIsHalf = sizeof(typename Format::Lane) == 2;

// Masked loads and stores that touch nothing beyond the mask; on x86 only AVX-512 has them for 16
// bits. Targets without them use a bounce buffer.
template <class Format>
constexpr bool kMaskedMemory =
    !HWY_MEM_OPS_MIGHT_FAULT && (!kIsHalf<Format> || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3));

#undef NORMD_NATIVE_FLOAT16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define NORMD_NATIVE_FLOAT16 1
#else
#define NORMD_NATIVE_FLOAT16 0
#endif

template <class D, class VHalf>
HWY_INLINE hn::Vec<D> Widen(Float16, D d, VHalf bits) {
#if NORMD_NATIVE_FLOAT16
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::BitCast(d16, bits));
#else
  const hn::RebindToUnsigned<D> du;
  const auto wide = hn::PromoteTo(du, bits);
  const auto magnitude = hn::And(wide, hn::Set(du, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(wide, magnitude));
  // The product moves the exponent from float16's bias to float32's, exactly, subnormals included.
  const auto scaled =
      hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 5.192296858534828e33f));
  const auto special =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(du, 0x7BFFu)), hn::Set(du, 0x7F800000u));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, scaled), special), sign));
#endif
}

template <class D, class VHalf>
HWY_INLINE hn::Vec<D> Widen(BFloat16, D d, VHalf bits) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

// The low 16 bits of each lane; the others are 0.
template <class D, class VU32>
HWY_INLINE hn::Vec<HalfTag<D>> TakeLow16(D, VU32 bits) {
  const hn::RebindToSigned<D> di;
  return hn::DemoteTo(HalfTag<D>(), hn::BitCast(di, bits));
}

// Rounds to nearest even; a NaN becomes a quiet NaN.
template <class D>
HWY_INLINE hn::Vec<HalfTag<D>> Narrow(Float16, [[maybe_unused]] D d, hn::Vec<D> v) {
#if NORMD_NATIVE_FLOAT16
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::BitCast(HalfTag<D>(), hn::DemoteTo(d16, v));
#else
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  // 0xC8000FFF is half a unit less a bit, less the difference of the exponents' biases.
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xC8000FFFu)), odd));
  // The spacing of floats in [0.5, 1) is that of float16's subnormals, so the sum rounds to it.
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
              hn::Set(du, 0x3F000000u));
  auto half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FEFFFu)), hn::Set(du, 0x7C00u), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000u)), hn::Set(du, 0x7E00u), half);
  return TakeLow16(d, hn::Or(half, sign));
#endif
}

// v rounded to bfloat16, in the upper half of each lane; the lower half is unspecified.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToUpperHalf(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

template <class D>
HWY_INLINE hn::Vec<HalfTag<D>> Narrow(BFloat16, D d, hn::Vec<D> v) {
  return TakeLow16(d, hn::ShiftRight<16>(RoundToUpperHalf(d, v)));
}

#if HWY_TARGET != HWY_SCALAR
// Loads two vectors as one.
template <class Format, class D>
HWY_INLINE hn::Vec<hn::Twice<HalfTag<D>>> NarrowPair(Format format, D d, hn::Vec<D> v0,
                                                     hn::Vec<D> v1) {
  const hn::Twice<HalfTag<D>> d16;
  if constexpr (std::is_same_v<Format, BFloat16>) {
    return hn::ConcatOdd(d16, hn::BitCast(d16, RoundToUpperHalf(d, v1)),
                         hn::BitCast(d16, RoundToUpperHalf(d, v0)));
  } else {
    return hn::Combine(d16, Narrow(format, d, v1), Narrow(format, d, v0));
  }
}
#endif

template <class Format, class D>
HWY_INLINE hn::Vec<D> Load(Format format, D d, const typename Format::Lane* p) {
  if constexpr (kIsHalf<Format>) {
    return Widen(format, d, hn::LoadU(HalfTag<D>(), p));
  } else {
    return hn::LoadU(d, p);
  }
}

template <class Format, class D>
HWY_INLINE void Store(Format format, D d, hn::Vec<D> v, typename Format::Lane* p) {
  if constexpr (kIsHalf<Format>) {
    hn::StoreU(Narrow(format, d, v), HalfTag<D>(), p);
  } else {
    hn::StoreU(v, d, p);
  }
}

// Stores two vectors to consecutive memory.
template <class Format, class D>
HWY_INLINE void StorePair(Format format, D d, hn::Vec<D> v0, hn::Vec<D> v1,
                          typename Format::Lane* p) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kIsHalf<Format>) {
    hn::StoreU(NarrowPair(format, d, v0, v1), hn::Twice<HalfTag<D>>(), p);
    return;
  }
#endif
  Store(format, d, v0, p);
  Store(format, d, v1, p + hn::Lanes(d));
}

// The same, bypassing the caches; p is aligned to StreamAlignment().
template <class Format, class D>
HWY_INLINE void StreamPair(Format format, D d, hn::Vec<D> v0, hn::Vec<D> v1,
                           typename Format::Lane* p) {
  if constexpr (kIsHalf<Format>) {
#if HWY_TARGET == HWY_SCALAR
    StorePair(format, d, v0, v1, p);
#else
    hn::Stream(NarrowPair(format, d, v0, v1), hn::Twice<HalfTag<D>>(), p);
#endif
  } else {
    hn::Stream(v0, d, p);
    hn::Stream(v1, d, p + hn::Lanes(d));
  }
}

// The alignment of StreamPair's destination, in bytes.
template <class D>
HWY_INLINE std::size_t StreamAlignment(D d) {
  return hn::Lanes(d) * sizeof(hn::TFromD<D>);
}

// The first n < Lanes(d) elements; the other lanes are 0.
template <class Format, class D>
HWY_INLINE hn::Vec<D> LoadPart([[maybe_unused]] Format format, D d, const typename Format::Lane* p,
                               std::size_t n) {
  using Lane = typename Format::Lane;
  if constexpr (kMaskedMemory<Format> && kIsHalf<Format>) {
    return Widen(format, d, hn::MaskedLoad(hn::FirstN(HalfTag<D>(), n), HalfTag<D>(), p));
  } else if constexpr (kMaskedMemory<Format>) {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  } else {
    // g++ does not see that n is less.
    constexpr std::size_t kMost = hn::MaxLanes(AccTag<Format>());
    HWY_ALIGN Lane buffer[kMost] = {};
    std::memcpy(buffer, p, std::min(n, kMost) * sizeof(Lane));
    return Load(format, d, buffer);
  }
}

template <class Format, class D>
HWY_INLINE void StorePart([[maybe_unused]] Format format, D d, hn::Vec<D> v,
                          typename Format::Lane* p, std::size_t n) {
  using Lane = typename Format::Lane;
  if constexpr (kMaskedMemory<Format> && kIsHalf<Format>) {
    hn::BlendedStore(Narrow(format, d, v), hn::FirstN(HalfTag<D>(), n), HalfTag<D>(), p);
  } else if constexpr (kMaskedMemory<Format>) {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
  } else {
    constexpr std::size_t kMost = hn::MaxLanes(AccTag<Format>());
    HWY_ALIGN Lane buffer[kMost];
    Store(format, d, v, buffer);
    std::memcpy(p, buffer, std::min(n, kMost) * sizeof(Lane));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_FORMATS_INL_H_

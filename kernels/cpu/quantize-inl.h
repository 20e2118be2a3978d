// Values of the buffer to 8 bits, and the magnitudes from which their scales are computed. Included
// once per target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_QUANTIZE_INL_H_
#undef NORMD_KERNELS_CPU_QUANTIZE_INL_H_
#else
#define NORMD_KERNELS_CPU_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/buffer-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/moments-inl.h"
#include "kernels/cpu/stage_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

// The low 8 bits of each lane, which are all that is set.
HWY_INLINE hn::Vec<ByteTag> TakeLow8(hn::Vec<hn::RebindToUnsigned<FloatTag>> bits) {
  const hn::RebindToSigned<FloatTag> di;
  return hn::DemoteTo(ByteTag(), hn::BitCast(di, bits));
}

HWY_INLINE hn::Vec<ByteTag> ToInt8(hn::Vec<FloatTag> v) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto number = hn::IfThenZeroElse(hn::IsNaN(v), v);
  const auto held = hn::Min(hn::Max(number, hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
  // Held before it is rounded, so that it fits; both bounds are whole numbers.
  return TakeLow8(hn::And(hn::BitCast(du, hn::NearestInt(held)), hn::Set(du, 0xFFu)));
}

HWY_INLINE hn::Vec<ByteTag> ToFloat8E4M3(hn::Vec<FloatTag> v) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u));
  // A comparison with a NaN is false, so that it passes.
  const auto absolute = hn::Abs(v);
  const auto held =
      hn::IfThenElse(hn::Gt(absolute, hn::Set(d, 448.0f)), hn::Set(d, 448.0f), absolute);
  const auto magnitude = hn::BitCast(du, held);
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(du, 1u));
  // 0xC407FFFF is half a step less a bit, less the difference of the exponents' biases.
  const auto normal =
      hn::ShiftRight<20>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xC407FFFFu)), odd));
  // The spacing of floats in [2^14, 2^15) is that of E4M3's subnormals: the sum rounds to it.
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(held, hn::Set(d, 16384.0f))), hn::Set(du, 0x46800000u));
  auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x3C800000u)), subnormal, normal);
  code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7Fu), code);
  return TakeLow8(hn::Or(code, sign));
}

HWY_INLINE void QuantizeFloats(const float* v, const float* factors, float all,
                               Quantization quantization, std::uint8_t* y, std::int64_t count) {
  const FloatTag d;
  const auto code = [&](hn::Vec<FloatTag> value) HWY_ATTR {
    return quantization == Quantization::kInt8 ? ToInt8(value) : ToFloat8E4M3(value);
  };
  ForVectors(
      d, count,
      [&](std::int64_t i) HWY_ATTR {
        const auto factor = factors == nullptr ? hn::Set(d, all) : hn::LoadU(d, factors + i);
        hn::StoreU(code(hn::Mul(hn::LoadU(d, v + i), factor)), ByteTag(), y + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto factor =
            factors == nullptr ? hn::Set(d, all) : LoadPart(Float32(), d, factors + i, n);
        HWY_ALIGN std::uint8_t bytes[hn::MaxLanes(FloatTag())];
        hn::StoreU(code(hn::Mul(LoadPart(Float32(), d, v + i, n), factor)), ByteTag(), bytes);
        std::memcpy(y + i, bytes, n);
      });
}

template <class Acc>
void Quantize(const void* buffer, const QuantizationFactors& factors, void* out,
              std::int64_t count) {
  const auto* v = static_cast<const Acc*>(buffer);
  const auto* each = static_cast<const Acc*>(factors.per_element);
  auto* y = static_cast<std::uint8_t*>(out);
  if constexpr (std::is_same_v<Acc, float>) {
    QuantizeFloats(v, each, static_cast<float>(factors.all), factors.quantization, y, count);
  } else {
    constexpr std::int64_t kBlock = 64;
    float products[kBlock];
    for (std::int64_t from = 0; from < count; from += kBlock) {
      const std::int64_t block = std::min(kBlock, count - from);
      for (std::int64_t i = 0; i < block; ++i) {
        products[i] =
            static_cast<float>(v[from + i] * (each == nullptr ? factors.all : each[from + i]));
      }
      QuantizeFloats(products, nullptr, 1, factors.quantization, y + from, block);
    }
  }
}

template <class Acc>
double SumOfAbsolutes(const void* buffer, std::int64_t count) {
  using Format = BufferFormat<Acc>;
  const AccTag<Format> d;
  const auto* v = static_cast<const Acc*>(buffer);
  WideSum<AccTag<Format>> sum;
  ForVectors(
      d, count, [&](std::int64_t i) HWY_ATTR { sum.Add(d, hn::Abs(hn::LoadU(d, v + i))); },
      [&](std::int64_t i, std::size_t n)
          HWY_ATTR { sum.Add(d, hn::Abs(LoadPart(Format(), d, v + i, n))); });
  return sum.Total();
}

// The larger of two magnitudes, or a NaN that is among them.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LargerOrNaN(D, V a, V b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Lt(b, a), a, b));
}

template <class Acc>
double LargestAbsolute(const void* buffer, std::int64_t count) {
  using Format = BufferFormat<Acc>;
  const AccTag<Format> d;
  const auto* v = static_cast<const Acc*>(buffer);
  auto largest = hn::Zero(d);
  ForVectors(
      d, count,
      [&](std::int64_t i)
          HWY_ATTR { largest = LargerOrNaN(d, largest, hn::Abs(hn::LoadU(d, v + i))); },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        largest = LargerOrNaN(d, largest, hn::Abs(LoadPart(Format(), d, v + i, n)));
      });
  HWY_ALIGN Acc lanes[hn::MaxLanes(AccTag<Format>())];
  hn::Store(largest, d, lanes);
  double result = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    const double lane = static_cast<double>(lanes[i]);
    if (std::isnan(lane)) return lane;
    result = std::max(result, lane);
  }
  return result;
}

template <class Acc>
void RaiseToAbsolutes(const void* buffer, void* maxima, std::int64_t count) {
  using Format = BufferFormat<Acc>;
  const AccTag<Format> d;
  const auto* v = static_cast<const Acc*>(buffer);
  auto* largest = static_cast<Acc*>(maxima);
  ForVectors(
      d, count,
      [&](std::int64_t i) HWY_ATTR {
        hn::StoreU(LargerOrNaN(d, hn::LoadU(d, largest + i), hn::Abs(hn::LoadU(d, v + i))), d,
                   largest + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto raised = LargerOrNaN(d, LoadPart(Format(), d, largest + i, n),
                                        hn::Abs(LoadPart(Format(), d, v + i, n)));
        StorePart(Format(), d, raised, largest + i, n);
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_QUANTIZE_INL_H_

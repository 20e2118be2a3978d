// Converts the buffer's values to 8 bits, and finds the magnitudes that determine their scales.
// Included once per target by foreach_target.h.

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

using VWord = hn::Vec<hn::RebindToUnsigned<FloatTag>>;

// These codes are in the low 8 bits of each lane.

HWY_INLINE VWord ToInt8(hn::Vec<FloatTag> v) {
  const FloatTag d;
  const auto number = hn::IfThenZeroElse(hn::IsNaN(v), v);
  const auto held = hn::Min(hn::Max(number, hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
  // The spacing of floats in [2^23, 2^24) is 1: the sum rounds to integers, which its low bits
  // hold.
  return hn::BitCast(hn::RebindToUnsigned<FloatTag>(), hn::Add(held, hn::Set(d, 0x1.8p23f)));
}

HWY_INLINE VWord ToFloat8E4M3(hn::Vec<FloatTag> v) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  // The bits of magnitudes are ordered like the magnitudes. A NaN is clamped too, and not used.
  const auto absolute = hn::BitCast(di, hn::Abs(v));
  const auto magnitude = hn::BitCast(du, hn::Min(absolute, hn::Set(di, 0x43E00000)));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(du, 1u));
  // 0xC407FFFF is half a step less a bit, less the difference of the exponents' biases.
  const auto normal =
      hn::ShiftRight<20>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xC407FFFFu)), odd));
  // The spacing of floats in [2^14, 2^15) is that of E4M3's subnormals, so the sum rounds to it.
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 16384.0f))),
              hn::Set(du, 0x46800000u));
  auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x3C800000u)), subnormal, normal);
  code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7Fu), code);
  return hn::OrAnd(code, hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80u));
}

HWY_INLINE void StoreCodes(VWord codes, std::uint8_t* y) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const auto bytes = hn::BitCast(di, hn::And(codes, hn::Set(du, 0xFFu)));
  hn::StoreU(hn::DemoteTo(ByteTag(), bytes), ByteTag(), y);
}

HWY_INLINE void StoreFourCodes(VWord c0, VWord c1, VWord c2, VWord c3, std::uint8_t* y) {
#if HWY_TARGET == HWY_SCALAR
  StoreCodes(c0, y);
  StoreCodes(c1, y + 1);
  StoreCodes(c2, y + 2);
  StoreCodes(c3, y + 3);
#else
  const hn::ScalableTag<std::uint16_t> d16;
  const hn::ScalableTag<std::uint8_t> d8;
  const auto lower = hn::ConcatEven(d16, hn::BitCast(d16, c1), hn::BitCast(d16, c0));
  const auto upper = hn::ConcatEven(d16, hn::BitCast(d16, c3), hn::BitCast(d16, c2));
  hn::StoreU(hn::ConcatEven(d8, hn::BitCast(d8, upper), hn::BitCast(d8, lower)), d8, y);
#endif
}

template <class ToCode>
HWY_INLINE void QuantizeFloatsTo(const float* v, const QuantizationFactors& factors,
                                 std::uint8_t* y, std::int64_t count, const ToCode& to_code) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* each = static_cast<const float*>(factors.per_element);
  const auto* blocks = static_cast<const float*>(factors.per_block);
  const auto all = hn::Set(d, static_cast<float>(factors.all));
  const auto at = [&](std::int64_t i) HWY_ATTR {
    const auto factor = each != nullptr     ? hn::LoadU(d, each + i)
                        : blocks != nullptr ? hn::Set(d, blocks[i / kQuantizationBlock])
                                            : all;
    return to_code(hn::Mul(hn::LoadU(d, v + i), factor));
  };
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    StoreFourCodes(at(i), at(i + lanes), at(i + 2 * lanes), at(i + 3 * lanes), y + i);
  }
  for (; i + lanes <= count; i += lanes) StoreCodes(at(i), y + i);
  if (i == count) return;
  // The rest is handled as a vector of its own.
  HWY_ALIGN float rest[hn::MaxLanes(FloatTag())] = {};
  HWY_ALIGN std::uint8_t bytes[hn::MaxLanes(FloatTag())];
  for (std::int64_t k = i; k < count; ++k) {
    const float factor = each != nullptr     ? each[k]
                         : blocks != nullptr ? blocks[k / kQuantizationBlock]
                                             : static_cast<float>(factors.all);
    rest[k - i] = v[k] * factor;
  }
  StoreCodes(to_code(hn::Load(d, rest)), bytes);
  std::memcpy(y + i, bytes, static_cast<std::size_t>(count - i));
}

HWY_INLINE void QuantizeFloats(const float* v, const QuantizationFactors& factors, std::uint8_t* y,
                               std::int64_t count) {
  if (factors.quantization == Quantization::kInt8) {
    QuantizeFloatsTo(v, factors, y, count,
                     [](hn::Vec<FloatTag> value) HWY_ATTR { return ToInt8(value); });
  } else {
    QuantizeFloatsTo(v, factors, y, count,
                     [](hn::Vec<FloatTag> value) HWY_ATTR { return ToFloat8E4M3(value); });
  }
}

template <class Acc>
void Quantize(const void* buffer, const QuantizationFactors& factors, void* out,
              std::int64_t count) {
  const auto* v = static_cast<const Acc*>(buffer);
  auto* y = static_cast<std::uint8_t*>(out);
  if constexpr (std::is_same_v<Acc, float>) {
    QuantizeFloats(v, factors, y, count);
  } else {
    constexpr std::int64_t kPart = 64;
    static_assert(kQuantizationBlock % kPart == 0);
    const auto* each = static_cast<const Acc*>(factors.per_element);
    const auto* blocks = static_cast<const Acc*>(factors.per_block);
    float products[kPart];
    for (std::int64_t from = 0; from < count; from += kPart) {
      const std::int64_t part = std::min(kPart, count - from);
      const double all = blocks != nullptr ? blocks[from / kQuantizationBlock] : factors.all;
      for (std::int64_t i = 0; i < part; ++i) {
        products[i] = static_cast<float>(v[from + i] * (each != nullptr ? each[from + i] : all));
      }
      QuantizeFloats(products, {factors.quantization}, y + from, part);
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

// Magnitudes as bits, which have the same order; a NaN's are the largest.
template <class D>
using BitsTag = hn::RebindToSigned<D>;
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<BitsTag<D>> AbsoluteBits(D, V v) {
  return hn::BitCast(BitsTag<D>(), hn::Abs(v));
}

template <class Acc>
double LargestAbsolute(const void* buffer, std::int64_t count) {
  using Format = BufferFormat<Acc>;
  const AccTag<Format> d;
  const BitsTag<AccTag<Format>> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* v = static_cast<const Acc*>(buffer);
  // Several accumulators, so that none waits for another.
  auto m0 = hn::Zero(di);
  auto m1 = m0, m2 = m0, m3 = m0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    m0 = hn::Max(m0, AbsoluteBits(d, hn::LoadU(d, v + i)));
    m1 = hn::Max(m1, AbsoluteBits(d, hn::LoadU(d, v + i + lanes)));
    m2 = hn::Max(m2, AbsoluteBits(d, hn::LoadU(d, v + i + 2 * lanes)));
    m3 = hn::Max(m3, AbsoluteBits(d, hn::LoadU(d, v + i + 3 * lanes)));
  }
  for (; i + lanes <= count; i += lanes) {
    m0 = hn::Max(m0, AbsoluteBits(d, hn::LoadU(d, v + i)));
  }
  if (i < count) {
    const auto left = static_cast<std::size_t>(count - i);
    m0 = hn::Max(m0, AbsoluteBits(d, LoadPart(Format(), d, v + i, left)));
  }
  const auto largest = hn::MaxOfLanes(di, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  return static_cast<double>(hn::GetLane(hn::BitCast(d, largest)));
}

template <class Acc>
void RaiseToAbsolutes(const void* buffer, void* maxima, std::int64_t count) {
  using Format = BufferFormat<Acc>;
  const AccTag<Format> d;
  const auto* v = static_cast<const Acc*>(buffer);
  auto* largest = static_cast<Acc*>(maxima);
  const auto larger = [&](auto most, auto value) HWY_ATTR {
    return hn::BitCast(d, hn::Max(AbsoluteBits(d, most), AbsoluteBits(d, value)));
  };
  ForVectors(
      d, count,
      [&](std::int64_t i) HWY_ATTR {
        hn::StoreU(larger(hn::LoadU(d, largest + i), hn::LoadU(d, v + i)), d, largest + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto raised =
            larger(LoadPart(Format(), d, largest + i, n), LoadPart(Format(), d, v + i, n));
        StorePart(Format(), d, raised, largest + i, n);
      });
}

template <class Acc>
void QuantizeBlocks(const void* buffer, Quantization quantization, float* scales, void* y,
                    std::int64_t count) {
  const auto* v = static_cast<const Acc*>(buffer);
  Acc factors[kChunkElements / kQuantizationBlock];
  for (std::int64_t at = 0; at < count; at += kQuantizationBlock) {
    const std::int64_t block = at / kQuantizationBlock;
    const double largest = LargestAbsolute<Acc>(v + at, std::min(kQuantizationBlock, count - at));
    scales[block] = ScaleOf(quantization, largest);
    factors[block] = static_cast<Acc>(FactorOf(scales[block]));
  }
  Quantize<Acc>(v, {quantization, nullptr, factors}, y, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_QUANTIZE_INL_H_

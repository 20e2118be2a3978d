// bfloat16 by the AVX-512-BF16 instructions, which sum and round two vectors at a time. Included
// once per target by foreach_target.h; NORMD_BFLOAT16_INSTRUCTIONS says whether the target can have
// them, `HasBFloat16Instructions` whether the machine does.
//
// They treat subnormal numbers as 0, so values where that could show go through BFloat16's code.

#if defined(NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#undef NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#else
#define NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/channel_moments-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/moments-inl.h"
#include "kernels/cpu/moments.h"

#undef NORMD_BFLOAT16_INSTRUCTIONS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define NORMD_BFLOAT16_INSTRUCTIONS 1
#else
#define NORMD_BFLOAT16_INSTRUCTIONS 0
#endif

#if NORMD_BFLOAT16_INSTRUCTIONS

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline bool HasBFloat16Instructions() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

// Loads are BFloat16's.
struct NativeBFloat16 : BFloat16 {};

using FloatTag = hn::ScalableTag<float>;
using VFloat = hn::Vec<FloatTag>;
using PairTag = hn::ScalableTag<std::uint16_t>;
using VPair = hn::Vec<PairTag>;

// Assembly, because Highway 1.0 has no target with these instructions, and code that is compiled
// for a target of its own is not inlined into the loops.
HWY_INLINE VPair RoundPair(VFloat v0, VFloat v1) {
  VPair pair;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pair.raw) : "v"(v1.raw), "v"(v0.raw));
  return pair;
}

// sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1]
HWY_INLINE VFloat AddProducts(VFloat sum, VPair a, VPair b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}

HWY_INLINE VPair Ones() { return hn::Set(PairTag(), std::uint16_t{0x3F80}); }

// Whether a number is subnormal, for _mm512_fpclass_ps_mask.
inline constexpr int kSubnormal = 0x20;

// Both round to the same bits as BFloat16's.
template <class D>
HWY_INLINE hn::Vec<HalfTag<D>> Narrow(NativeBFloat16, D d, VFloat v) {
  hn::Vec<HalfTag<D>> half;
  asm("vcvtneps2bf16 %1, %0" : "=v"(half.raw) : "v"(v.raw));
  if (HWY_LIKELY(_mm512_fpclass_ps_mask(v.raw, kSubnormal) == 0)) return half;
  return Narrow(BFloat16(), d, v);
}
template <class D>
HWY_INLINE VPair NarrowPair(NativeBFloat16, D d, VFloat v0, VFloat v1) {
  const VPair pair = RoundPair(v0, v1);
  if (HWY_LIKELY(_mm512_testn_epi16_mask(pair.raw, _mm512_set1_epi16(0x7FFF)) == 0)) return pair;
  if (HWY_LIKELY((_mm512_fpclass_ps_mask(v0.raw, kSubnormal) |
                  _mm512_fpclass_ps_mask(v1.raw, kSubnormal)) == 0)) {
    return pair;
  }
  return NarrowPair(BFloat16(), d, v0, v1);
}

HWY_NOINLINE inline Moments CarefulMoments(const std::uint16_t* x, std::int64_t count,
                                           bool centered) {
  return ChunkSummer<BFloat16>(x, count, centered).Finish();
}

// Sums the elements and their squares, both exact products, in place of deviations from a pivot.
// The chunk is summed once more, with a pivot, if the mean is so large that this loses more than a
// pivot would, or if squares were rounded to 0 or infinity.
template <>
class ChunkSummer<NativeBFloat16> {
 public:
  static constexpr int kEights = 2;
  static constexpr double kLeastSquare = 0x1p-100;

  HWY_INLINE ChunkSummer(const std::uint16_t* x, std::int64_t count, bool centered)
      : x_(x), count_(count), centered_(centered) {}

  HWY_INLINE bool CanStep() const { return at_ + kStepElements <= count_; }

  HWY_INLINE void Step() {
    constexpr std::uintptr_t kDistanceBytes = 8192;
    Fetch(reinterpret_cast<std::uintptr_t>(x_ + at_) + kDistanceBytes, kStepElements * sizeof(*x_));
    const VPair x0 = At(0), x1 = At(1), x2 = At(2), x3 = At(3);
    const VPair x4 = At(4), x5 = At(5), x6 = At(6), x7 = At(7);
    const FloatTag d;
    const VFloat zero = hn::Zero(d);
    const VFloat even =
        AddProducts(AddProducts(AddProducts(AddProducts(zero, x0, x0), x2, x2), x4, x4), x6, x6);
    const VFloat odd =
        AddProducts(AddProducts(AddProducts(AddProducts(zero, x1, x1), x3, x3), x5, x5), x7, x7);
    second_.Add(d, hn::Add(even, odd));
    if (centered_) {
      const VPair ones = Ones();
      const VFloat lower = AddProducts(
          AddProducts(AddProducts(AddProducts(zero, x0, ones), x2, ones), x4, ones), x6, ones);
      const VFloat upper = AddProducts(
          AddProducts(AddProducts(AddProducts(zero, x1, ones), x3, ones), x5, ones), x7, ones);
      first_.Add(d, hn::Add(lower, upper));
    }
    at_ += kStepElements;
  }

  HWY_INLINE ChunkSums Sums() {
    TakeRest();
    return {static_cast<double>(count_), 0, centered_ ? first_.Total() : 0, second_.Total()};
  }

  HWY_INLINE Moments Finish() {
    const ChunkSums sums = Sums();
    if (!sums.Hold<ChunkSummer>()) return CarefulMoments(x_, count_, centered_);
    return {sums.count, sums.mean(), sums.m2()};
  }

 private:
  static constexpr std::int64_t kPairElements = hn::MaxLanes(PairTag());
  static constexpr std::int64_t kStepElements = 8 * kPairElements;

  HWY_INLINE VPair At(std::int64_t pair) const {
    return hn::LoadU(PairTag(), x_ + at_ + pair * kPairElements);
  }

  HWY_INLINE void TakeRest() {
    while (CanStep()) Step();
    const FloatTag d;
    const VPair ones = Ones();
    VFloat first = hn::Zero(d);
    VFloat second = hn::Zero(d);
    while (at_ < count_) {
      const auto left = static_cast<std::size_t>(std::min(kPairElements, count_ - at_));
      const VPair x = hn::MaskedLoad(hn::FirstN(PairTag(), left), PairTag(), x_ + at_);
      first = AddProducts(first, x, ones);
      second = AddProducts(second, x, x);
      at_ += static_cast<std::int64_t>(left);
    }
    if (centered_) first_.Add(d, first);
    second_.Add(d, second);
  }

  const std::uint16_t* x_;
  std::int64_t count_;
  bool centered_;
  std::int64_t at_ = 0;
  WideSum<FloatTag> first_;
  WideSum<FloatTag> second_;
};

template <>
inline constexpr std::size_t kMaxChannels<NativeBFloat16> = hn::MaxLanes(PairTag());

// A vector of channels of two positions at a time. Their interleaved elements are pairs whose
// products the instruction adds, which leaves the channels out of order.
template <bool kPart>
class ChannelPairs {
 public:
  HWY_INLINE ChannelPairs(const std::uint16_t* x, std::int64_t stride, std::size_t channels,
                          bool centered)
      : x_(x), stride_(stride), channels_(channels), centered_(centered) {}

  HWY_INLINE void Accumulate(std::int64_t positions, Ahead ahead) {
    std::int64_t i = 0;
    for (; i + 8 <= positions; i += 8) {
      ahead.FetchEight(kMaxChannels<NativeBFloat16> * sizeof(*x_));
      Add<4>(i, [&](std::int64_t position) HWY_ATTR { return Row(position); });
    }
    const auto row_if_any = [&](std::int64_t position) HWY_ATTR {
      return position < positions ? Row(position) : hn::Zero(PairTag());
    };
    for (; i < positions; i += 2) Add<1>(i, row_if_any);
  }

  // Stores the sums of each channel.
  HWY_INLINE void Store(double* first, double* second) const {
    StoreInOrder(first_, first);
    StoreInOrder(second_, second);
  }

 private:
  static constexpr std::size_t kLanes = hn::MaxLanes(FloatTag());

  HWY_INLINE VPair Row(std::int64_t position) const {
    const std::uint16_t* p = x_ + position * stride_;
    if constexpr (kPart) return hn::MaskedLoad(hn::FirstN(PairTag(), channels_), PairTag(), p);
    return hn::LoadU(PairTag(), p);
  }

  template <int kPairs, class RowAt>
  HWY_INLINE void Add(std::int64_t position, const RowAt& row) {
    const FloatTag d;
    const VPair ones = Ones();
    VFloat first[2] = {hn::Zero(d), hn::Zero(d)};
    VFloat second[2] = {hn::Zero(d), hn::Zero(d)};
    for (int k = 0; k < kPairs; ++k) {
      const VPair even = row(position + 2 * k);
      const VPair odd = row(position + 2 * k + 1);
      const VPair lower = hn::InterleaveLower(PairTag(), even, odd);
      const VPair upper = hn::InterleaveUpper(PairTag(), even, odd);
      second[0] = AddProducts(second[0], lower, lower);
      second[1] = AddProducts(second[1], upper, upper);
      if (!centered_) continue;
      first[0] = AddProducts(first[0], lower, ones);
      first[1] = AddProducts(first[1], upper, ones);
    }
    for (int half = 0; half < 2; ++half) {
      second_[half].Add(d, second[half]);
      if (centered_) first_[half].Add(d, first[half]);
    }
  }

  // In each block of 128 bits, which is eight channels, the first four are in the lower half.
  static HWY_INLINE void StoreInOrder(const WideSum<FloatTag> (&sums)[2], double* to) {
    HWY_ALIGN double halves[2][kLanes];
    for (int half = 0; half < 2; ++half) StoreWide(FloatTag(), sums[half], halves[half]);
    for (std::size_t c = 0; c < 2 * kLanes; ++c) to[c] = halves[c / 4 % 2][c / 8 * 4 + c % 4];
  }

  const std::uint16_t* x_;
  std::int64_t stride_;
  std::size_t channels_;
  bool centered_;
  WideSum<FloatTag> first_[2];
  WideSum<FloatTag> second_[2];
};

template <>
struct ChannelTiles<NativeBFloat16> {
  using Result = TileResult<NativeBFloat16>;

  // Half of a second-level cache: a tile has whole lines.
  static constexpr std::int64_t kBlockElements = 1 << 17;

  static HWY_INLINE std::int64_t Lanes() { return Result::kMaxLanes; }

  static HWY_INLINE void Take(const std::uint16_t* x, std::int64_t stride, std::int64_t positions,
                              bool centered, std::size_t channels, Ahead ahead, Result* result) {
    if (channels == Result::kMaxLanes) {
      TakePairs(ChannelPairs<false>(x, stride, channels, centered), x, stride, positions, centered,
                channels, ahead, result);
    } else {
      TakePairs(ChannelPairs<true>(x, stride, channels, centered), x, stride, positions, centered,
                channels, ahead, result);
    }
  }

 private:
  template <class Pairs>
  static HWY_INLINE void TakePairs(Pairs pairs, const std::uint16_t* x, std::int64_t stride,
                                   std::int64_t positions, bool centered, std::size_t channels,
                                   Ahead ahead, Result* result) {
    double first[Result::kMaxLanes];
    double second[Result::kMaxLanes];
    pairs.Accumulate(positions, ahead);
    pairs.Store(first, second);
    bool hold[Result::kMaxLanes];
    bool all_hold = true;
    for (std::size_t c = 0; c < channels; ++c) {
      const ChunkSums sums{static_cast<double>(positions), 0, centered ? first[c] : 0, second[c]};
      result->mean[c] = sums.mean();
      result->m2[c] = sums.m2();
      hold[c] = sums.Hold<ChunkSummer<NativeBFloat16>>();
      all_hold = all_hold && hold[c];
    }
    if (all_hold) return;
    // The remaining channels are summed around pivots.
    using Careful = ChannelTiles<BFloat16>;
    for (std::size_t begin = 0; begin < channels; begin += kMaxChannels<BFloat16>) {
      TileResult<BFloat16> careful;
      const std::size_t count = std::min(kMaxChannels<BFloat16>, channels - begin);
      Careful::Take(x + begin, stride, positions, centered, count, ahead, &careful);
      for (std::size_t c = 0; c < count; ++c) {
        if (hold[begin + c]) continue;
        result->mean[begin + c] = careful.mean[c];
        result->m2[begin + c] = careful.m2[c];
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_BFLOAT16_INSTRUCTIONS
#endif  // NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_

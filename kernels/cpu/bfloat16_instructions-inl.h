// bfloat16 by the instructions of AVX-512-BF16, which sum and round two vectors at a time. Included
// once per target by foreach_target.h; NORMD_BFLOAT16_INSTRUCTIONS says whether the target can have
// them, `HasBFloat16Instructions` whether the machine does.
//
// They take subnormal numbers for 0, so whatever could show that goes the way of BFloat16.

#if defined(NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#undef NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#else
#define NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
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

// Loads, stores and single vectors are BFloat16's.
struct NativeBFloat16 : BFloat16 {};

using FloatTag = hn::ScalableTag<float>;
using VFloat = hn::Vec<FloatTag>;
using PairTag = hn::ScalableTag<std::uint16_t>;
using VPair = hn::Vec<PairTag>;

// Assembly, because Highway 1.0 has no target with these instructions, and what is compiled for a
// target of its own is not inlined into the loops.
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

// The same bits as BFloat16's.
template <class D>
HWY_INLINE VPair NarrowPair(NativeBFloat16, D d, VFloat v0, VFloat v1) {
  constexpr int kSubnormal = 0x20;
  const VPair pair = RoundPair(v0, v1);
  if (HWY_LIKELY(_mm512_testn_epi16_mask(pair.raw, _mm512_set1_epi16(0x7FFF)) == 0)) return pair;
  if (HWY_LIKELY((_mm512_fpclass_ps_mask(v0.raw, kSubnormal) |
                  _mm512_fpclass_ps_mask(v1.raw, kSubnormal)) == 0)) {
    return pair;
  }
  return NarrowPair(BFloat16(), d, v0, v1);
}

HWY_NOINLINE Moments CarefulMoments(const std::uint16_t* x, std::int64_t count, bool centered) {
  return ChunkSummer<BFloat16>(x, count, centered).Finish();
}

// Sums the elements and their squares, both exact products, in place of deviations from a pivot.
// Where the mean is so large that this would lose more than it would with a pivot, or the squares
// so small or large that they are rounded to 0 or infinity, the chunk is summed once more, with
// one.
template <>
class ChunkSummer<NativeBFloat16> {
 public:
  static constexpr int kEights = 2;

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

  HWY_INLINE Moments Finish() {
    TakeRest();
    constexpr double kLeastSquare = 0x1p-100;
    const double n = static_cast<double>(count_);
    const double second = second_.Total();
    if (!(second >= n * kLeastSquare && std::isfinite(second))) {
      return CarefulMoments(x_, count_, centered_);
    }
    if (!centered_) return {n, 0, second};
    const double first = first_.Total();
    const double mean = first / n;
    const double correction = first * mean;
    const double m2 = second - correction;
    if (!(correction <= 4 * m2)) return CarefulMoments(x_, count_, centered_);
    return {n, mean, m2};
  }

 private:
  static constexpr std::int64_t kPairElements = hn::MaxLanes(PairTag());
  static constexpr std::int64_t kStepElements = 8 * kPairElements;

  static HWY_INLINE VPair Ones() { return hn::Set(PairTag(), std::uint16_t{0x3F80}); }

  HWY_INLINE VPair At(std::int64_t pair) const {
    return hn::LoadU(PairTag(), x_ + at_ + pair * kPairElements);
  }

  HWY_INLINE void Take(VPair x) {
    const FloatTag d;
    second_.Add(d, AddProducts(hn::Zero(d), x, x));
    if (centered_) first_.Add(d, AddProducts(hn::Zero(d), x, Ones()));
  }

  HWY_INLINE void TakeRest() {
    while (CanStep()) Step();
    for (; at_ + kPairElements <= count_; at_ += kPairElements) Take(At(0));
    if (at_ == count_) return;
    const auto left = static_cast<std::size_t>(count_ - at_);
    Take(hn::MaskedLoad(hn::FirstN(PairTag(), left), PairTag(), x_ + at_));
    at_ = count_;
  }

  const std::uint16_t* x_;
  std::int64_t count_;
  bool centered_;
  std::int64_t at_ = 0;
  WideSum<FloatTag> first_;
  WideSum<FloatTag> second_;
};

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_BFLOAT16_INSTRUCTIONS
#endif  // NORMD_KERNELS_CPU_BFLOAT16_INSTRUCTIONS_INL_H_

// Moments of contiguous elements and of channels. Included once per target by foreach_target.h.
//
// Accuracy. Deviations are taken from a pivot, the mean of a first part of the chunk, in Acc.
// Groups of eight are summed in Acc as a tree, and the groups in double. The pivot p is the mean of
// m of the n elements, so (p - mean)^2 <= (n / m) variance for any data: the correction m2 = sum
// d^2 - (sum d)^2 / n cancels at most a factor 1 + n / m, and almost nothing unless the pivot's
// part differs from the rest.

#if defined(NORMD_KERNELS_CPU_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_MOMENTS_INL_H_
#undef NORMD_KERNELS_CPU_MOMENTS_INL_H_
#else
#define NORMD_KERNELS_CPU_MOMENTS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/moments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
using VDouble = hn::Vec<DoubleTag>;

// A sum per lane of Acc, in double.
template <class D>
struct WideSum {
  static constexpr bool kTwo = sizeof(hn::TFromD<D>) == 4 && HWY_TARGET != HWY_SCALAR;

  VDouble lower;
  VDouble upper;

  // Written out, because an implicit constructor is not compiled for the target.
  HWY_INLINE WideSum() : lower(hn::Zero(DoubleTag())), upper(hn::Zero(DoubleTag())) {}

  HWY_INLINE void Add(D d, hn::Vec<D> v) {
    const DoubleTag dd;
    if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
      lower = hn::Add(lower, v);
    } else {
#if HWY_TARGET == HWY_SCALAR
      (void)d;
      lower = hn::Add(lower, hn::PromoteTo(dd, v));
#else
      const hn::Half<D> dh;
      (void)d;
      lower = hn::Add(lower, hn::PromoteTo(dd, hn::LowerHalf(dh, v)));
      upper = hn::Add(upper, hn::PromoteTo(dd, hn::UpperHalf(dh, v)));
#endif
    }
  }

  HWY_INLINE double Total() const {
    const DoubleTag dd;
    return hn::GetLane(hn::SumOfLanes(dd, hn::Add(lower, upper)));
  }
};

// Sums of deviations and of their squares.
template <class D>
struct DeviationSums {
  WideSum<D> first;
  WideSum<D> second;

  HWY_INLINE DeviationSums() {}

  HWY_INLINE void Add(D d, hn::Vec<D> deviation) {
    first.Add(d, deviation);
    if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
      second.lower = hn::MulAdd(deviation, deviation, second.lower);
    } else {
      second.Add(d, hn::Mul(deviation, deviation));
    }
  }

  HWY_INLINE void AddEight(D d, hn::Vec<D> v0, hn::Vec<D> v1, hn::Vec<D> v2, hn::Vec<D> v3,
                           hn::Vec<D> v4, hn::Vec<D> v5, hn::Vec<D> v6, hn::Vec<D> v7) {
    first.Add(d, hn::Add(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)),
                         hn::Add(hn::Add(v4, v5), hn::Add(v6, v7))));
    const auto even = hn::MulAdd(v6, v6, hn::MulAdd(v4, v4, hn::MulAdd(v2, v2, hn::Mul(v0, v0))));
    const auto odd = hn::MulAdd(v7, v7, hn::MulAdd(v5, v5, hn::MulAdd(v3, v3, hn::Mul(v1, v1))));
    second.Add(d, hn::Add(even, odd));
  }
};

// Prefetches `bytes` from an address on, which need not be valid.
HWY_INLINE void Fetch(std::uintptr_t address, std::uintptr_t bytes) {
  for (std::uintptr_t line = address; line < address + bytes; line += 64) {
    hwy::Prefetch(reinterpret_cast<const char*>(line));
  }
}

// Reads an element that may begin at any byte.
template <class Lane>
inline Lane Element(const Lane* x) {
  Lane lane;
  std::memcpy(&lane, x, sizeof(lane));
  return lane;
}

inline double ToDouble(Float32, float lane) { return static_cast<double>(lane); }
inline double ToDouble(Float64, double lane) { return lane; }
inline double ToDouble(Float16, std::uint16_t lane) {
  return static_cast<double>(FromFloat16(lane));
}
inline double ToDouble(BFloat16, std::uint16_t lane) {
  return static_cast<double>(FromBFloat16(lane));
}

// Two plain passes in double, for values whose squares overflow Acc, and for NaN and Inf: with one
// of these, every deviation from the mean is a NaN.
template <class Format>
HWY_NOINLINE Moments WideMoments(const typename Format::Lane* x, std::int64_t count,
                                 std::int64_t stride, bool centered) {
  Moments result{static_cast<double>(count), 0, 0};
  if (centered) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = ToDouble(Format(), Element(x + i * stride));
      if (!std::isfinite(value)) {
        constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
        return {result.count, kNaN, kNaN};
      }
      sum += value;
    }
    result.mean = sum / result.count;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const double deviation = ToDouble(Format(), Element(x + i * stride)) - result.mean;
    result.m2 += deviation * deviation;
  }
  return result;
}

// The mean of count > 0 elements; any value near it is good enough.
template <class Format>
HWY_INLINE typename Format::Acc Pivot(const typename Format::Lane* x, std::int64_t count) {
  using Acc = typename Format::Acc;
  const AccTag<Format> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    sum0 = hn::Add(sum0, Load(Format(), d, x + i));
    sum1 = hn::Add(sum1, Load(Format(), d, x + i + lanes));
  }
  for (; i < count; i += lanes) {
    const std::int64_t left = count - i;
    sum0 = hn::Add(sum0, left >= lanes ? Load(Format(), d, x + i)
                                       : LoadPart(Format(), d, x + i, std::size_t(left)));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1))) / static_cast<Acc>(count);
}

// The moments of one chunk, step by step, so that another loop can be interleaved.
template <class Format>
class ChunkSummer {
 public:
  using D = AccTag<Format>;
  using Lane = typename Format::Lane;
  using Acc = typename Format::Acc;

  // How many times Transform takes eight vectors for one step here.
  static constexpr int kEights = 1;

  HWY_INLINE ChunkSummer(const Lane* x, std::int64_t count, bool centered)
      : x_(x), count_(count), centered_(centered) {
    constexpr std::int64_t kPivotElements = 128;
    pivot_ = centered ? Pivot<Format>(x, std::min(count, kPivotElements)) : Acc{0};
  }

  HWY_INLINE bool CanStep() const { return at_ + StepElements() <= count_; }

  // Takes eight more vectors.
  HWY_INLINE void Step() {
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(D()));
    // The hardware's prefetchers stop at each page, and restart slowly.
    constexpr std::uintptr_t kDistanceBytes = 8192;
    Fetch(reinterpret_cast<std::uintptr_t>(x_ + at_) + kDistanceBytes,
          static_cast<std::uintptr_t>(StepElements()) * sizeof(Lane));
    sums_.AddEight(D(), Deviation(0), Deviation(lanes), Deviation(2 * lanes), Deviation(3 * lanes),
                   Deviation(4 * lanes), Deviation(5 * lanes), Deviation(6 * lanes),
                   Deviation(7 * lanes));
    at_ += StepElements();
  }

  // Takes the rest.
  HWY_INLINE Moments Finish() {
    TakeRest();
    const double n = static_cast<double>(count_);
    for (int attempt = 0;; ++attempt) {
      const double first = sums_.first.Total();
      const double second = sums_.second.Total();
      if (!std::isfinite(second)) return WideMoments<Format>(x_, count_, 1, centered_);
      if (!centered_) return {n, 0, second};
      const double shift = first / n;
      const double correction = first * shift;
      const double m2 = second - correction;
      if (correction <= 4 * m2 || correction == 0 || attempt == 1) {
        return {n, static_cast<double>(pivot_) + shift, std::max(0.0, m2)};
      }
      pivot_ = static_cast<Acc>(static_cast<double>(pivot_) + shift);
      at_ = 0;
      sums_ = DeviationSums<D>();
      TakeRest();
    }
  }

 private:
  static HWY_INLINE std::int64_t StepElements() {
    return 8 * static_cast<std::int64_t>(hn::Lanes(D()));
  }

  HWY_INLINE hn::Vec<D> Deviation(std::int64_t offset) const {
    return hn::Sub(Load(Format(), D(), x_ + at_ + offset), hn::Set(D(), pivot_));
  }

  HWY_INLINE void TakeRest() {
    const D d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    while (CanStep()) Step();
    for (; at_ + lanes <= count_; at_ += lanes) sums_.Add(d, Deviation(0));
    if (at_ == count_) return;
    const std::size_t left = static_cast<std::size_t>(count_ - at_);
    const auto part = hn::Sub(LoadPart(Format(), d, x_ + at_, left), hn::Set(d, pivot_));
    sums_.Add(d, hn::IfThenElseZero(hn::FirstN(d, left), part));
    at_ = count_;
  }

  const Lane* x_;
  std::int64_t count_;
  bool centered_;
  std::int64_t at_ = 0;
  Acc pivot_;
  DeviationSums<D> sums_;
};

template <class Format>
Moments ContiguousMoments(const void* data, std::int64_t count, bool centered) {
  const auto* x = static_cast<const typename Format::Lane*>(data);
  Moments total;
  for (std::int64_t i = 0; i < count; i += kChunkElements) {
    ChunkSummer<Format> chunk(x + i, std::min(kChunkElements, count - i), centered);
    total = Merge(total, chunk.Finish());
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_MOMENTS_INL_H_

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
#include "kernels/cpu/elements.h"
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

  // Adds eight deviations, at(0) to at(7).
  template <class At>
  HWY_INLINE void AddEight(const At& at) {
    const D d;
    const auto v0 = at(0), v1 = at(1), v2 = at(2), v3 = at(3);
    const auto v4 = at(4), v5 = at(5), v6 = at(6), v7 = at(7);
    first.Add(d, hn::Add(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)),
                         hn::Add(hn::Add(v4, v5), hn::Add(v6, v7))));
    const auto even = hn::MulAdd(v6, v6, hn::MulAdd(v4, v4, hn::MulAdd(v2, v2, hn::Mul(v0, v0))));
    const auto odd = hn::MulAdd(v7, v7, hn::MulAdd(v5, v5, hn::MulAdd(v3, v3, hn::Mul(v1, v1))));
    second.Add(d, hn::Add(even, odd));
  }

  // Adds up to eight.
  template <class At>
  HWY_INLINE void AddFew(std::int64_t count, const At& at) {
    const D d;
    auto sum0 = hn::Zero(d), sum1 = sum0, squares0 = sum0, squares1 = sum0;
    for (std::int64_t i = 0; i < count; i += 2) {
      const auto even = at(i);
      sum0 = hn::Add(sum0, even);
      squares0 = hn::MulAdd(even, even, squares0);
      if (i + 1 == count) break;
      const auto odd = at(i + 1);
      sum1 = hn::Add(sum1, odd);
      squares1 = hn::MulAdd(odd, odd, squares1);
    }
    first.Add(d, hn::Add(sum0, sum1));
    second.Add(d, hn::Add(squares0, squares1));
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
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1))) * (Acc{1} / static_cast<Acc>(count));
}

// Adds the deviations of `count` elements.
template <class Format>
HWY_INLINE void AddDeviations(const typename Format::Lane* x, std::int64_t count,
                              hn::Vec<AccTag<Format>> pivot, DeviationSums<AccTag<Format>>* sums) {
  const AccTag<Format> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; count >= 8 * lanes; count -= 8 * lanes, x += 8 * lanes) {
    sums->AddEight([=](std::int64_t i)
                       HWY_ATTR { return hn::Sub(Load(Format(), d, x + i * lanes), pivot); });
  }
  if (count == 0) return;
  sums->AddFew((count + lanes - 1) / lanes, [=](std::int64_t i) HWY_ATTR {
    const std::int64_t left = count - i * lanes;
    if (left >= lanes) return hn::Sub(Load(Format(), d, x + i * lanes), pivot);
    const auto n = static_cast<std::size_t>(left);
    return hn::IfThenElseZero(hn::FirstN(d, n),
                              hn::Sub(LoadPart(Format(), d, x + i * lanes, n), pivot));
  });
}

// Sums of deviations from a pivot, and of their squares. Without `centered`, pivot and `first` are
// 0.
struct ChunkSums {
  double count;
  double pivot;
  double first;
  double second;

  HWY_INLINE double mean() const { return pivot + first / count; }
  HWY_INLINE double m2() const { return second - first * (first / count); }
  // Whether the moments lose little: the mean is at most two deviations from the pivot, and no
  // square was rounded to infinity or, where the format can do that, to 0.
  template <class Summer>
  HWY_INLINE bool Hold() const {
    return second >= count * Summer::kLeastSquare && std::isfinite(second) &&
           first * (first / count) <= 4 * m2();
  }
};

// The moments of one chunk, step by step, so that another loop can be interleaved.
template <class Format>
class ChunkSummer {
 public:
  using D = AccTag<Format>;
  using Lane = typename Format::Lane;
  using Acc = typename Format::Acc;

  // How many times Transform takes eight vectors for one step here.
  static constexpr int kEights = 1;
  static constexpr double kLeastSquare = 0;

  HWY_INLINE ChunkSummer(const Lane* x, std::int64_t count, bool centered)
      : x_(x), count_(count), centered_(centered) {
    constexpr std::int64_t kPivotElements = 128;
    pivot_ = centered ? Pivot<Format>(x, std::min(count, kPivotElements)) : Acc{0};
  }

  HWY_INLINE bool CanStep() const { return at_ + StepElements() <= count_; }

  // Takes eight more vectors.
  HWY_INLINE void Step() {
    // The hardware's prefetchers stop at each page, and restart slowly.
    constexpr std::uintptr_t kDistanceBytes = 8192;
    Fetch(reinterpret_cast<std::uintptr_t>(x_ + at_) + kDistanceBytes,
          static_cast<std::uintptr_t>(StepElements()) * sizeof(Lane));
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
    sums_.AddEight([&](std::int64_t i) HWY_ATTR {
      return hn::Sub(Load(Format(), D(), x_ + at_ + i * lanes), hn::Set(D(), pivot_));
    });
    at_ += StepElements();
  }

  // Takes the rest.
  HWY_INLINE ChunkSums Sums() {
    TakeRest();
    return {static_cast<double>(count_), static_cast<double>(pivot_),
            centered_ ? sums_.first.Total() : 0, sums_.second.Total()};
  }

  // Takes the rest; sums once more, around the mean, if the pivot is far from it.
  HWY_INLINE Moments Finish() {
    ChunkSums sums = Sums();
    if (!sums.Hold<ChunkSummer>()) {
      if (std::isfinite(sums.second)) {
        pivot_ = static_cast<Acc>(sums.mean());
        at_ = 0;
        sums_ = DeviationSums<D>();
        sums = Sums();
      }
      if (!std::isfinite(sums.second)) return WideMoments<Format>(x_, count_, 1, centered_);
    }
    return {sums.count, sums.mean(), std::max(0.0, sums.m2())};
  }

 private:
  static HWY_INLINE std::int64_t StepElements() {
    return 8 * static_cast<std::int64_t>(hn::Lanes(D()));
  }

  HWY_INLINE void TakeRest() {
    while (CanStep()) Step();
    AddDeviations<Format>(x_ + at_, count_ - at_, hn::Set(D(), pivot_), &sums_);
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

// Sums row by row, and finishes all rows at once: divisions and the square root take most of a
// short row's time. Every result has the bits of ContiguousMoments and cpu::Finish.
template <class Format>
void MeasureRows(const ShortRows& rows, double* mean, double* rstd) {
  HWY_ALIGN double pivot[kMaxShortRows] = {};
  HWY_ALIGN double first[kMaxShortRows] = {};
  HWY_ALIGN double second[kMaxShortRows] = {};
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const auto* x = static_cast<const typename Format::Lane*>(ByteAt(rows.x, row * rows.step));
    const ChunkSums sums = ChunkSummer<Format>(x, rows.count, rows.centered).Sums();
    pivot[row] = sums.pivot;
    first[row] = sums.first;
    second[row] = sums.second;
  }
  const DoubleTag d;
  const double count = static_cast<double>(rows.count);
  for (std::int64_t row = 0; row < rows.rows; row += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VDouble n = hn::Set(d, count);
    const VDouble sum = hn::Load(d, first + row);
    const VDouble squares = hn::Load(d, second + row);
    const VDouble shift = hn::Div(sum, n);
    const VDouble correction = hn::Mul(sum, shift);
    const VDouble m2 = hn::Sub(squares, correction);
    const VDouble variance = rows.of_sums ? m2 : hn::Div(m2, n);
    const VDouble deviation = hn::Sqrt(hn::Add(variance, hn::Set(d, rows.eps)));
    // As ChunkSums::Hold.
    const auto holds =
        hn::And(hn::And(hn::Ge(squares, hn::Set(d, count * ChunkSummer<Format>::kLeastSquare)),
                        hn::Le(squares, hn::Set(d, std::numeric_limits<double>::max()))),
                hn::Le(correction, hn::Mul(hn::Set(d, 4.0), m2)));
    hn::StoreU(hn::Add(hn::Load(d, pivot + row), shift), d, mean + row);
    hn::StoreU(hn::IfThenElse(holds, hn::Div(hn::Set(d, 1.0), deviation), hn::Set(d, -1.0)), d,
               rstd + row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_MOMENTS_INL_H_

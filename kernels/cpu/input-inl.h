// The normalized values, on vectors: x and the inputs added to it. Included once per target by
// foreach_target.h.

#if defined(NORMD_KERNELS_CPU_INPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_INPUT_INL_H_
#undef NORMD_KERNELS_CPU_INPUT_INL_H_
#else
#define NORMD_KERNELS_CPU_INPUT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/buffer-inl.h"
#include "kernels/cpu/combine-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// v rounded as a store to memory would round it.
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

// A vector of an InputRun, whole or in part: Loader reads the lanes. kSumOnly: it is x, or x plus a
// residual, so the compiler drops all other cases.
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
        gate_(static_cast<const Lane*>(run.gate)) {
    if (gate_ != nullptr && !run.per_element) {
      gate_of_all_ = static_cast<Acc>(ToDouble(Format(), Element(gate_)));
    }
  }

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
      v = hn::Mul(v, run_.per_element ? load.Memory(gate_ + i) : hn::Set(d, gate_of_all_));
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
  const Lane* gate_;
  Acc gate_of_all_ = 1;
};

// at(i, loader) is a vector of the sum.
template <class Format, class At>
HWY_INLINE void WriteSum(const InputRun& run, const At& at) {
  const AccTag<Format> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const FullLoader<Format> full;
  auto* sum = static_cast<typename Format::Lane*>(run.sum);
  const std::int64_t count = run.count;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    StorePair(Format(), d, at(i, full), at(i + lanes, full), sum + i);
  }
  for (; i + lanes <= count; i += lanes) Store(Format(), d, at(i, full), sum + i);
  if (i == count) return;
  const auto left = static_cast<std::size_t>(count - i);
  StorePart(Format(), d, at(i, PartLoader<Format>{left}), sum + i, left);
}

template <class Format>
void Sum(const InputRun& run) {
  if (run.bias == nullptr && run.gate == nullptr) {
    const auto* x = static_cast<const typename Format::Lane*>(run.x);
    const auto* residual = static_cast<const typename Format::Lane*>(run.residual);
    WriteSum<Format>(run, [=](std::int64_t i, const auto& load) HWY_ATTR {
      return hn::Add(load.Memory(x + i), load.Memory(residual + i));
    });
  } else {
    const InputLine<Format, false> line(run);
    WriteSum<Format>(run,
                     [&](std::int64_t i, const auto& load) HWY_ATTR { return line.At(i, load); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_INPUT_INL_H_

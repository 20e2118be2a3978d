// How the second tensor joins in, on vectors. Included once per target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_COMBINE_INL_H_
#undef NORMD_KERNELS_CPU_COMBINE_INL_H_
#else
#define NORMD_KERNELS_CPU_COMBINE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/stages.h"

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
    // The exponential loses a NaN; v restores it only if v is a NaN too.
    case Combine::kMultiplySigmoid:
      return hn::IfThenElse(hn::IsNaN(other), other, TimesSigmoid(d, v, other));
  }
  return v;
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_COMBINE_INL_H_

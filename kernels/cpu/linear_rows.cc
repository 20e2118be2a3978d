#include "kernels/cpu/linear_rows.h"

// As in simd_kernels.cc.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_rows.cc"
#include "hwy/foreach_target.h"
// The above comes first: it includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/apply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = AccTag<Float32>;
using V = hn::Vec<D>;

// Calls full(i) for whole vectors from element i on, and part(i, n) for the n that are left.
template <class Full, class Part>
HWY_INLINE void ForVectors(std::int64_t count, const Full& full, const Part& part) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) full(i);
  if (i < count) part(i, static_cast<std::size_t>(count - i));
}

template <class Format>
void WidenRow(const void* x, std::int64_t count, float* to) {
  const auto* from = static_cast<const typename Format::Lane*>(x);
  ForVectors(
      count,
      [=](std::int64_t i)
          HWY_ATTR { Store(Float32(), D(), Load(Format(), D(), from + i), to + i); },
      [=](std::int64_t i, std::size_t n)
          HWY_ATTR { StorePart(Float32(), D(), LoadPart(Format(), D(), from + i, n), to + i, n); });
}

void AddBias(const float* z, const float* bias, std::int64_t count, float* to) {
  if (bias == nullptr) {
    WidenRow<Float32>(z, count, to);
    return;
  }
  const Float32 f;
  ForVectors(
      count,
      [=](std::int64_t i)
          HWY_ATTR { Store(f, D(), hn::Add(Load(f, D(), z + i), Load(f, D(), bias + i)), to + i); },
      [=](std::int64_t i, std::size_t n) HWY_ATTR {
        const V sum = hn::Add(LoadPart(f, D(), z + i, n), LoadPart(f, D(), bias + i, n));
        StorePart(f, D(), sum, to + i, n);
      });
}

template <class Format>
class Finisher {
 public:
  using Lane = typename Format::Lane;

  HWY_INLINE Finisher(const RowStatistics& statistics, const norm::Epilogue& epilogue)
      : normalize_({statistics.mean, statistics.rstd, 0}),
        add_(epilogue.add),
        multiply_(epilogue.multiply),
        activation_{epilogue.activation, epilogue.leaky_slope} {}

  HWY_INLINE V operator()(V v, V y) {
    v = normalize_.Full(v, 0);
    if (add_) v = hn::Add(v, y);
    if (multiply_) v = hn::Mul(v, y);
    return Activate(D(), v, activation_);
  }

 private:
  AffineMap<Float32> normalize_;
  const bool add_;
  const bool multiply_;
  const Epilogue activation_;
};

template <class Format>
void FinishRow(const float* row, std::int64_t count, const RowStatistics& statistics,
               const norm::Epilogue& epilogue, const void* y_data, void* out_data) {
  using Lane = typename Format::Lane;
  const auto* y = static_cast<const Lane*>(y_data);
  auto* out = static_cast<Lane*>(out_data);
  Finisher<Format> finisher(statistics, epilogue);
  ForVectors(
      count,
      [&](std::int64_t i) HWY_ATTR {
        const V second = y == nullptr ? hn::Zero(D()) : Load(Format(), D(), y + i);
        Store(Format(), D(), finisher(Load(Float32(), D(), row + i), second), out + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const V second = y == nullptr ? hn::Zero(D()) : LoadPart(Format(), D(), y + i, n);
        const V v = finisher(LoadPart(Float32(), D(), row + i, n), second);
        StorePart(Format(), D(), v, out + i, n);
      });
}

template <class Format>
const LinearRowKernels& RowTable() {
  static constexpr LinearRowKernels kTable = {WidenRow<Format>, AddBias, FinishRow<Format>};
  return kTable;
}

const LinearRowKernels* ChooseRowKernels(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return &RowTable<Float16>();
    case DType::kBFloat16: return &RowTable<BFloat16>();
    default: return &RowTable<Float32>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normd::norm::cpu {

HWY_EXPORT(ChooseRowKernels);

const LinearRowKernels& LinearRowKernelsFor(DType dtype) {
  return *HWY_DYNAMIC_DISPATCH(ChooseRowKernels)(dtype);
}

}  // namespace normd::norm::cpu
#endif  // HWY_ONCE

#include "kernels/cpu/linear_rows.h"
// As in simd_kernels.cc.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_rows.cc"
#include "hwy/foreach_target.h"
// The macros come first: this header includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/apply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = AccTag<Float32>;
using V = hn::Vec<D>;

template <class Format>
void WidenRow(const void* x, std::int64_t count, float* to) {
  const auto* from = static_cast<const typename Format::Lane*>(x);
  ForVectors(
      D(), count,
      [=](std::int64_t i)
          HWY_ATTR { Store(Float32(), D(), Load(Format(), D(), from + i), to + i); },
      [=](std::int64_t i, std::size_t n)
          HWY_ATTR { StorePart(Float32(), D(), LoadPart(Format(), D(), from + i, n), to + i, n); });
}

// Calls piece(z, i, n) for each tile of the row: its n elements from element i on.
template <class Piece>
HWY_INLINE void ForTiles(const TiledRow& row, const Piece& piece) {
  const float* z = row.z;
  for (std::int64_t i = 0; i < row.count; i += row.tile, z += row.stride) {
    piece(z, i, std::min(row.tile, row.count - i));
  }
}

// One pass with one pivot for all tiles; moments-inl.h has its error. Rows that this pass cannot do
// (a far pivot, NaN, Inf, overflow) are done tile by tile.
Moments RowMoments(const TiledRow& row) {
  constexpr std::int64_t kPivotElements = 128;
  const std::int64_t first_elements = std::min({row.count, row.tile, kPivotElements});
  const float pivot = Pivot<Float32>(row.z, first_elements);
  DeviationSums<D> sums;
  ForTiles(row, [&](const float* z, std::int64_t, std::int64_t n)
                    HWY_ATTR { AddDeviations<Float32>(z, n, hn::Set(D(), pivot), &sums); });
  const ChunkSums all{static_cast<double>(row.count), static_cast<double>(pivot),
                      sums.first.Total(), sums.second.Total()};
  if (all.Hold<ChunkSummer<Float32>>()) return {all.count, all.mean(), all.m2()};
  Moments total;
  ForTiles(row, [&](const float* z, std::int64_t, std::int64_t count) {
    total = Merge(total, ContiguousMoments<Float32>(z, count, true));
  });
  return total;
}

template <class Format>
class Finisher {
 public:
  using Lane = typename Format::Lane;

  HWY_INLINE Finisher(const RowStatistics& statistics, const norm::Epilogue& epilogue)
      : normalize_({statistics.mean, statistics.rstd, 0}),
        add_(epilogue.add),
        multiply_(epilogue.multiply),
        activation_{epilogue.activation, static_cast<double>(epilogue.leaky_slope)} {}

  HWY_INLINE V operator()(V v, V y) {
    v = normalize_.Full(v, 0);
    if (add_) v = hn::Add(v, y);
    if (multiply_) v = hn::Mul(v, y);
    return Activate<PrecisionFor<Format>>(D(), v, activation_);
  }

 private:
  AffineMap<Float32> normalize_;
  const bool add_;
  const bool multiply_;
  const Epilogue activation_;
};

template <class Format>
void FinishRow(const TiledRow& row, const RowStatistics& statistics, const norm::Epilogue& epilogue,
               const void* y_data, void* out_data) {
  using Lane = typename Format::Lane;
  Finisher<Format> finisher(statistics, epilogue);
  ForTiles(row, [&](const float* z, std::int64_t first, std::int64_t count) HWY_ATTR {
    const auto* y = y_data == nullptr ? nullptr : static_cast<const Lane*>(y_data) + first;
    Lane* out = static_cast<Lane*>(out_data) + first;
    ForVectors(
        D(), count,
        [&](std::int64_t i) HWY_ATTR {
          const V second = y == nullptr ? hn::Zero(D()) : Load(Format(), D(), y + i);
          Store(Format(), D(), finisher(hn::LoadU(D(), z + i), second), out + i);
        },
        [&](std::int64_t i, std::size_t n) HWY_ATTR {
          const V second = y == nullptr ? hn::Zero(D()) : LoadPart(Format(), D(), y + i, n);
          const V v = finisher(LoadPart(Float32(), D(), z + i, n), second);
          StorePart(Format(), D(), v, out + i, n);
        });
  });
}

template <class Format>
const LinearRowKernels& RowTable() {
  static constexpr LinearRowKernels kTable = {WidenRow<Format>, RowMoments, FinishRow<Format>};
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

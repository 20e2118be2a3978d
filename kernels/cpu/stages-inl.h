// The stages on vectors, between memory and a buffer of the accumulation type. Included once per
// target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_STAGES_INL_H_
#undef NORMD_KERNELS_CPU_STAGES_INL_H_
#else
#define NORMD_KERNELS_CPU_STAGES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/affine_maps-inl.h"
#include "kernels/cpu/apply-inl.h"
#include "kernels/cpu/buffer-inl.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/input-inl.h"
#include "kernels/cpu/stage_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Format, bool kSumOnly>
HWY_INLINE void ReadLine(const InputRun& run, void* buffer) {
  using Acc = typename Format::Acc;
  const AccTag<Format> d;
  const InputLine<Format, kSumOnly> line(run);
  auto* v = static_cast<Acc*>(buffer);
  auto* sum = static_cast<typename Format::Lane*>(run.sum);
  ForVectors(
      d, run.count,
      [&](std::int64_t i) HWY_ATTR {
        const auto value = line.At(i, FullLoader<Format>());
        hn::StoreU(value, d, v + i);
        if (sum != nullptr) Store(Format(), d, value, sum + i);
      },
      [&](std::int64_t i, std::size_t n) HWY_ATTR {
        const auto value = line.At(i, PartLoader<Format>{n});
        StorePart(BufferFormat<Acc>(), d, value, v + i, n);
        if (sum != nullptr) StorePart(Format(), d, value, sum + i, n);
      });
}

template <class Format>
void Read(const InputRun& run, void* buffer) {
  if (run.bias == nullptr && run.gate == nullptr && run.other == nullptr) {
    ReadLine<Format, true>(run, buffer);
  } else {
    ReadLine<Format, false>(run, buffer);
  }
}

// The map has the tensor's type, whatever x and y have.
template <class Format, class Map>
HWY_INLINE void StageTransformFrom(const StageRun& run, const Map& map) {
  using Buffer = BufferFormat<typename Format::Acc>;
  if constexpr (std::is_same_v<Buffer, Format>) {
    TransformRun<Format, Format, Format>(run, map);
  } else if (run.to_buffer) {
    run.from_buffer ? TransformRun<Buffer, Buffer, Format>(run, map)
                    : TransformRun<Format, Buffer, Format>(run, map);
  } else {
    run.from_buffer ? TransformRun<Buffer, Format, Format>(run, map)
                    : TransformRun<Format, Format, Format>(run, map);
  }
}

template <class Format>
void StageApply(const StageRun& run, const Affine& affine) {
  StageTransformFrom<Format>(run, AffineMap<Format>(affine));
}

template <class Format>
void StageApplyElements(const StageRun& run, const ElementAffine& affine) {
  if (IsModulated(affine)) {
    StageTransformFrom<Format>(run, ModulatedMap<Format>(affine));
  } else {
    StageTransformFrom<Format>(run, ElementMap<Format>(affine));
  }
}

template <class Format>
void StageApplyLine(const StageRun& run, const LineAffine& affine) {
  StageTransformFrom<Format>(run, LineMap<Format>(affine));
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_STAGES_INL_H_

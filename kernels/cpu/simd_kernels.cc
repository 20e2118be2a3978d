#include "kernels/cpu/simd_kernels.h"

// The kernels gain nothing from these targets over their neighbours, and each target costs build
// time. SVE's scalable vectors have no size, and some types here hold vectors as members.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_kernels.cc"
#include "hwy/foreach_target.h"
// The macros come first: this header includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/apply-inl.h"
#include "kernels/cpu/bfloat16_instructions-inl.h"
#include "kernels/cpu/channel_moments-inl.h"
#include "kernels/cpu/input-inl.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

template <class Format>
const SimdKernels& Table() {
  static constexpr SimdKernels kTable = {Sum<Format>,
                                         ContiguousMoments<Format>,
                                         ChannelMoments<Format>,
                                         MeasureRows<Format>,
                                         Apply<Format>,
                                         ApplyElements<Format>,
                                         ApplyCyclic<Format>,
                                         ApplyAlong<Format>,
                                         ApplyElementsAlong<Format>};
  return kTable;
}

const SimdKernels* ChooseKernels(DType dtype, [[maybe_unused]] bool native) {
#if NORMD_BFLOAT16_INSTRUCTIONS
  if (native && dtype == DType::kBFloat16 && HasBFloat16Instructions()) {
    return &Table<NativeBFloat16>();
  }
#endif
  switch (dtype) {
    case DType::kFloat32: return &Table<Float32>();
    case DType::kFloat64: return &Table<Float64>();
    case DType::kFloat16: return &Table<Float16>();
    case DType::kBFloat16: return &Table<BFloat16>();
    default: return nullptr;
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normd::norm::cpu {

HWY_EXPORT(ChooseKernels);
HWY_EXPORT(TargetName);

const SimdKernels& KernelsFor(DType dtype) {
  return *HWY_DYNAMIC_DISPATCH(ChooseKernels)(dtype, true);
}

const SimdKernels& PortableKernelsFor(DType dtype) {
  return *HWY_DYNAMIC_DISPATCH(ChooseKernels)(dtype, false);
}

void FlushStreams() { hwy::FlushStream(); }

const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace normd::norm::cpu
#endif  // HWY_ONCE

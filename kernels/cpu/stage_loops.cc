#include "kernels/cpu/stage_loops.h"

// The same targets as in simd_kernels.cc.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stage_loops.cc"
#include "hwy/foreach_target.h"
// The macros come first: this header includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/bfloat16_instructions-inl.h"
#include "kernels/cpu/quantize-inl.h"
#include "kernels/cpu/stages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

template <class Format>
const StageLoops& LoopsOf() {
  using Acc = typename Format::Acc;
  static constexpr StageLoops kLoops = {
      Read<Format>,           StageApply<Format>,   StageApplyElements<Format>,
      StageApplyLine<Format>, Quantize<Acc>,        QuantizeBlocks<Acc>,
      SumOfAbsolutes<Acc>,    LargestAbsolute<Acc>, RaiseToAbsolutes<Acc>};
  return kLoops;
}

const StageLoops* ChooseStageLoops(DType dtype, [[maybe_unused]] bool native) {
#if NORMD_BFLOAT16_INSTRUCTIONS
  if (native && dtype == DType::kBFloat16 && HasBFloat16Instructions()) {
    return &LoopsOf<NativeBFloat16>();
  }
#endif
  switch (dtype) {
    case DType::kFloat32: return &LoopsOf<Float32>();
    case DType::kFloat64: return &LoopsOf<Float64>();
    case DType::kFloat16: return &LoopsOf<Float16>();
    case DType::kBFloat16: return &LoopsOf<BFloat16>();
    default: return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normd::norm::cpu {

HWY_EXPORT(ChooseStageLoops);

const StageLoops& StageLoopsFor(DType dtype) {
  return *HWY_DYNAMIC_DISPATCH(ChooseStageLoops)(dtype, true);
}

const StageLoops& PortableStageLoopsFor(DType dtype) {
  return *HWY_DYNAMIC_DISPATCH(ChooseStageLoops)(dtype, false);
}

}  // namespace normd::norm::cpu
#endif  // HWY_ONCE

// Parameters of 16 bits as float32.

#ifndef NORMD_KERNELS_CPU_WIDEN_H_
#define NORMD_KERNELS_CPU_WIDEN_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/half.h"
#include "kernels/types.h"

namespace normd::norm::cpu {

// `count` elements of float16 or bfloat16, exactly. A caller that computes often with such
// parameters widens them once; the kernels do it in every call.
inline void Widen(const ParamVector& source, std::int64_t count, float* out) {
  const auto* halves = static_cast<const std::uint16_t*>(source.data);
  // A loop for each type, so that both become vector loops.
  if (source.dtype == DType::kFloat16) {
    std::transform(halves, halves + count, out, [](std::uint16_t x) { return FromFloat16(x); });
  } else {
    std::transform(halves, halves + count, out, [](std::uint16_t x) { return FromBFloat16(x); });
  }
}

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_WIDEN_H_

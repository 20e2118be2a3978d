// The error of the stages' results, including quantized ones, against float64 in host memory.

#ifndef NORMD_KERNELS_BENCH_STAGED_ERROR_H_
#define NORMD_KERNELS_BENCH_STAGED_ERROR_H_

#include "kernels/norm.h"

namespace normd::norm::bench {

// Largest |y - reference| / max(1, |reference|) over a computed segment in host memory, including
// residual_out; infinite if only one of the two is a NaN. The error of a quantized element is the
// least change of the reference that would give it, and that of a row's or block's scale is
// relative.
double StagedMaxError(const NormSpec& spec, const NormParams& params, const Segment& segment);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_STAGED_ERROR_H_

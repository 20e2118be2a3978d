// The error of what stages compute, quantized results among them, against float64 in host memory.

#ifndef NORMD_KERNELS_BENCH_STAGED_ERROR_H_
#define NORMD_KERNELS_BENCH_STAGED_ERROR_H_

#include "kernels/norm.h"

namespace normd::norm::bench {

// Largest |y - reference| / max(1, |reference|) over a computed segment in host memory,
// residual_out included; infinite where one of the two is a NaN and the other is not. A quantized
// element counts with the least by which the reference would have to differ to become it, and a
// scale of a row or block with its relative error.
double StagedMaxError(const NormSpec& spec, const NormParams& params, const Segment& segment);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_STAGED_ERROR_H_

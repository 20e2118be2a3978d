// The float64 reference that every kernel is held against: scalar, sequential, written to be read.
// Tests, norm_bench and `normload --verify` use it; nothing on a serving path does.

#ifndef NORMD_KERNELS_REFERENCE_H_
#define NORMD_KERNELS_REFERENCE_H_

#include "kernels/linear_norm.h"
#include "kernels/norm.h"

namespace normd::norm {

// Element `index` of an array of `dtype`, exactly.
double LoadElement(DType dtype, const void* data, std::int64_t index);

// Rounds `value` to nearest even into element `index`; overflow gives an infinity, a NaN a quiet
// NaN.
void StoreElement(DType dtype, void* data, std::int64_t index, double value);

// Element `index` of what is normalized: x, or the sum with the residual, rounded to the type. What
// a backend writes to residual_out has these values exactly.
double NormalizedElement(const NormSpec& spec, const Segment& segment, std::int64_t index);

// Computes one segment of host memory in float64 with two passes (mean, then squared deviations),
// whatever spec.dtype is. `y` is samples * channels * spatial doubles, in x's layout, and is the
// unrounded result; segment.y and segment.residual_out are not used. Cost: one thread, about 10 ns
// an element.
Status NormalizeReference(const NormSpec& spec, const NormParams& params, const Segment& segment,
                          double* y);

// Computes one segment of host memory in float64, whatever the dtype and the precision are. `out`
// is samples * out_features doubles, unrounded; segment.out is not used. Cost: one thread, samples
// * out_features * in_features multiplications of some nanoseconds each.
Status LinearNormReference(const LinearNormSpec& spec, const LinearNormParams& params,
                           const LinearNormSegment& segment, double* out);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_REFERENCE_H_

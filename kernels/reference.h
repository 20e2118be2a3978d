// The float64 reference for every kernel: scalar, sequential, written to be read. Tests, norm_bench
// and `normload --verify` use it; nothing on a serving path does.

#ifndef NORMD_KERNELS_REFERENCE_H_
#define NORMD_KERNELS_REFERENCE_H_

#include <vector>

#include "kernels/linear_norm.h"
#include "kernels/norm.h"

namespace normd::norm {

// Element `index` of an array of `dtype`, exactly.
double LoadElement(DType dtype, const void* data, std::int64_t index);

// Rounds `value` to nearest even into element `index`; overflow gives an infinity, a NaN a quiet
// NaN. Quantized types as StoreQuantized; an index must fit its type.
void StoreElement(DType dtype, void* data, std::int64_t index, double value);

// Element `index` of an array of quantized values, exactly.
double LoadQuantized(Quantization quantization, const void* data, std::int64_t index);

// Stores `value`, already divided by the scale, rounded to nearest even and saturated.
void StoreQuantized(Quantization quantization, void* data, std::int64_t index, double value);

// Element `index` of residual_out: x plus its addends, rounded to the type. Backends write exactly
// these values, except where a gate multiplies x: they may round that product first. `params` are
// those that apply to the segment.
double NormalizedElement(const NormSpec& spec, const NormParams& params, const Segment& segment,
                         std::int64_t index);

// Where NormalizeReference leaves its results, all in float64.
struct ReferenceOutputs {
  double* y;                     // samples * channels * spatial, in x's layout, unrounded.
  double* mean = nullptr;        // One per row, or null.
  double* rstd = nullptr;        // One per row, or null.
  double* normalized = nullptr;  // y before the affine part and all that follows, or null.
};

// Computes one segment of host memory in float64 with two passes (mean, then squared deviations),
// whatever spec.dtype is. The segment's outputs are not used, and y is not quantized. Cost: one
// thread, about 10 ns an element.
Status NormalizeReference(const NormSpec& spec, const NormParams& params, const Segment& segment,
                          const ReferenceOutputs& out);
inline Status NormalizeReference(const NormSpec& spec, const NormParams& params,
                                 const Segment& segment, double* y) {
  return NormalizeReference(spec, params, segment, ReferenceOutputs{y});
}

// The scale of each row or block of `y`, NormalizeReference's result, in float64: as many as
// Segment::scale_out has. Only with QuantizationScale::kRow or kBlock.
std::vector<double> ReferenceScales(const NormSpec& spec, const Segment& segment, const double* y);
// Divides each element of `y` by the one of these scales that covers it.
void DivideByScales(const NormSpec& spec, const Segment& segment, const std::vector<double>& scales,
                    double* y);

// Computes one segment of host memory in float64, whatever the dtype and the precision are. `out`
// is samples * out_features doubles, unrounded; segment.out is not used. Cost: one thread, samples
// * out_features * in_features multiplications of some nanoseconds each.
Status LinearNormReference(const LinearNormSpec& spec, const LinearNormParams& params,
                           const LinearNormSegment& segment, double* out);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_REFERENCE_H_

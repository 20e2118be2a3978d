// The contract that every backend keeps: what a normalization computes, and on what.
//
// A tensor is a list of samples, each a matrix of `channels` x `spatial` elements (channels first)
// or `spatial` x `channels` (channels last). The channels of a sample fall into `groups` equal
// groups. The elements of one (sample, group) are one *row*: they share one mean and one variance,
// and rows never mix. gamma and beta hold one element per channel. Every operation is a case of
// this:
//
//   operation      channels C            groups   spatial S                   statistics
//   InstanceNorm   C                     C        product of trailing dims    row's own, or given
//   GroupNorm      C                     G        product of trailing dims    row's own
//   LayerNorm      normalized elements   1        1                           row's own
//   RMSNorm        normalized elements   1        1                           mean of squares
//   BatchNorm      C                     C        product of trailing dims    given
//
// y = activation((x - mean) * rstd * gamma + beta), rstd = 1 / sqrt(variance + eps); for mean of
// squares the mean is taken as 0. The variance is the population variance (divided by the count).
//
// With a residual input, v = x + residual is rounded to x's type and normalized in x's place; it
// can also be written, so that what comes next adds to what was normalized (the pre-norm residual
// stream of language models; `fused_add_rms_norm` in vLLM and FlashInfer).
//
// A batch is a list of segments, one per request. Segments of one batch share the spec, differ in
// sample count and spatial size, and may bring parameters of their own. A row's result depends on
// the row, its length, the spec and the parameters alone: never on the batch it is in, on how many
// threads or blocks compute it, or on the alignment of its memory.
//
// This header is C++17 and needs no library: host code and .cu files share it.

#ifndef NORMD_KERNELS_NORM_H_
#define NORMD_KERNELS_NORM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/status.h"
#include "kernels/types.h"

namespace normd::norm {

enum class Layout : std::uint8_t { kChannelsFirst = 0, kChannelsLast = 1 };

enum class Statistics : std::uint8_t {
  kMeanVariance = 0,  // Each row's own.
  kMeanSquare = 1,    // Each row's own mean of squares; no mean is subtracted, beta still applies.
  kGiven = 2,         // NormParams::mean and variance, per channel.
};

// What one model version computes; constant over all its batches.
struct NormSpec {
  Statistics statistics = Statistics::kMeanVariance;
  DType dtype = DType::kFloat32;  // The type of x and y.
  Layout layout = Layout::kChannelsFirst;
  std::int64_t channels = 0;  // > 0
  std::int64_t groups = 0;    // > 0, divides channels
  double eps = 1e-5;          // Finite, >= 0
  Activation activation = Activation::kNone;
  double leaky_slope = 0.01;  // For kLeakyRelu; rounded to float where the accumulation is.
  bool residual = false;      // Each segment has one: v = x + residual takes the place of x.
  bool residual_out = false;  // v is also written. Only with `residual`.
};

NormSpec InstanceNormSpec(std::int64_t channels, DType dtype);
NormSpec GroupNormSpec(std::int64_t channels, std::int64_t groups, DType dtype);
NormSpec LayerNormSpec(std::int64_t normalized_elements, DType dtype);
NormSpec RmsNormSpec(std::int64_t normalized_elements, DType dtype);
NormSpec BatchNormSpec(std::int64_t channels, DType dtype);

// Each has one element per channel. The pointers are in the memory of the backend that computes
// (host or device).
struct NormParams {
  ParamVector gamma;     // Absent: 1.
  ParamVector beta;      // Absent: 0.
  ParamVector mean;      // Statistics::kGiven only, and then required.
  ParamVector variance;  // As mean. Negative values are not rejected; they give NaN as in PyTorch.
};

// One request's tensors in a batch, all of the same shape and type. Borrowed: they outlive the
// computation.
// Inputs (x, residual) and outputs (y, residual_out) are aligned to their element, but on the CPU
// inputs may begin at any byte; wider alignment is never needed, 64 bytes is fastest. An output is
// either exactly an input of its segment (in place) or overlaps no input of the batch, and overlaps
// no other output. samples == 0 and spatial == 0 are allowed and write nothing; the pointers may
// then be null.
struct Segment {
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  const void* residual = nullptr;      // With NormSpec::residual, and only then.
  void* residual_out = nullptr;        // With NormSpec::residual_out, and only then.
  const NormParams* params = nullptr;  // In place of the batch's; null: the batch's.
};

// The length of a row, (channels / groups) * spatial. The spec and the product must be valid.
constexpr std::int64_t RowLength(const NormSpec& spec, std::int64_t spatial) {
  return spec.channels / spec.groups * spatial;
}

// InvalidArgument, with the field, what came and what was wanted, if the spec or the parameters
// break a condition stated above. Backends call it; a caller that validates at load need not.
Status ValidateSpec(const NormSpec& spec, const NormParams& params);

// What a backend asks of x.
enum class InputAlignment { kElement, kByte };

// InvalidArgument if a segment's counts are negative, its bytes overflow 63 bits, a pointer of a
// segment with elements is null, is there although the spec has no use for it, or is not aligned
// (outputs to their element, inputs as `input` says), or if its own parameters are not those of the
// spec.
Status ValidateSegments(const NormSpec& spec, const Segment* segments, std::size_t count,
                        InputAlignment input = InputAlignment::kElement);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_NORM_H_

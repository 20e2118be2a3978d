// The contract of every backend: what a normalization computes, and on what.
//
// A tensor is a list of samples, each a matrix of `channels` x `spatial` elements (channels first)
// or `spatial` x `channels` (channels last), or with channels and positions in turn. The channels
// of a sample fall into `groups` equal groups. The elements of one (sample, group) are one *row*:
// they share one mean and one variance, and rows never mix. gamma and beta hold one element per
// channel. Every operation is a case of this:
//
//   operation      channels C            groups   spatial S                   statistics
//   InstanceNorm   C                     C        product of trailing dims    row's own, or given
//   GroupNorm      C                     G        product of trailing dims    row's own
//   LayerNorm      normalized elements   1        1                           row's own
//   RMSNorm        normalized elements   1        1                           mean of squares
//   BatchNorm      C                     C        product of trailing dims    given
//
// The stages, in this order; those that a spec does not name are left out:
//
//   input      v = x (+ input_bias[c]) (+ residual), or x (+ input_bias[c]) times gate[n, c] +
//              residual; or combine_input(x, other)
//   rounding   with a residual or an input bias, v is rounded to x's type, and written as
//              residual_out if wanted: the next layer adds to what was normalized (the pre-norm
//              residual stream of language models; `fused_add_rms_norm` in vLLM and FlashInfer)
//   statistics of each row, over its elements v
//   normalized u = (v - mean) * rstd, as Statistics says
//   style      u * gamma[c] + beta[c]; gamma takes effect as weight_offset + gamma[c], and both may
//              be the sample's own (Style); with Style::kTensor there is no weight_offset
//   modulation that * (scale_offset + scale[n, c]) + shift[n, c]   (FiLM; adaptive norms)
//   activation
//   other      combine_output(that, other)
//   output     y in x's type, or quantized
//
// n is the sample, c the channel. Computation is in the accumulation type: float64 for float64,
// float32 for the others. What precedes the quantization is not rounded to x's type (as in
// FlashInfer's rmsnorm_quant; vLLM rounds).
//
// A batch is a list of segments, one per request. Segments of one batch share the spec, differ in
// sample count and spatial size, and may bring parameters of their own. A row's result depends on
// the row, its length, the spec and the parameters alone, and on the CPU, where rows interleave in
// memory, on the other rows of its sample: never on the batch it is in, on how many threads or
// blocks compute it, or on the alignment of its memory.
//
// This header is C++17 and needs no library: host code and .cu files share it.

#ifndef NORMD_KERNELS_NORM_H_
#define NORMD_KERNELS_NORM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/run_sizes.h"
#include "kernels/stages.h"
#include "kernels/status.h"
#include "kernels/types.h"

namespace normd::norm {

enum class Layout : std::uint8_t {
  kChannelsFirst = 0,
  kChannelsLast = 1,
  // Runs of channels and of positions take turns: a sample has the dimensions [channel_runs[0],
  // spatial_runs[0], channel_runs[1], spatial_runs[1], ...]. Channels are numbered in the order of
  // channel_runs, positions in that of spatial_runs. Only with rows of positions and one group:
  // LayerNorm over axes that are not adjacent.
  kMixedRuns = 2,
};

// The statistics that normalize a row. The variance is the population variance (divided by the
// count).
enum class Statistics : std::uint8_t {
  kMeanVariance = 0,  // Each row's own: rstd = 1 / sqrt(variance + eps).
  kMeanSquare = 1,    // Each row's own mean of squares in place of the variance; the mean is 0.
  kGiven = 2,         // NormParams::mean and variance, per channel.
  // A norm of each row: rstd = 1 / max(norm, eps), and the mean is 0, as in PyTorch's
  // torch.nn.functional.normalize.
  kSumOfAbsolutes = 3,  // p = 1
  kRootOfSquares = 4,   // p = 2
  kLargestAbsolute = 5  // p = infinity; a NaN makes it NaN.
};

// The computation of one model version; constant over all its batches.
struct NormSpec {
  Statistics statistics = Statistics::kMeanVariance;
  // The type of x, and of all tensors that have no type of their own below.
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kChannelsFirst;
  std::int64_t channels = 0;  // > 0, < 2^60
  std::int64_t groups = 0;    // > 0, divides channels
  double eps = 1e-5;          // Finite, >= 0
  Activation activation = Activation::kNone;
  double leaky_slope = 0.01;  // For kLeakyRelu; rounded to float if the accumulation type is float.
  bool residual = false;      // Each segment has one.
  bool residual_out = false;  // v is also written. Only with `residual` or an input bias.
  bool gate = false;          // Each segment has one. Only with `residual`.
  bool scale = false;         // Each segment has one.
  bool shift = false;         // Each segment has one.
  Rows rows = Rows::kGroup;   // kPosition: not with given statistics.
  // Both are finite in the accumulation type.
  double weight_offset = 0;  // 1 in Gemma's RMSNorm. Without gamma it has no effect.
  double scale_offset = 1;   // Without `scale` it has no effect.
  Style style = Style::kNone;
  std::int64_t styles = 0;                  // > 0 with kIndex and kMix, else 0.
  Combine combine_input = Combine::kNone;   // Not with `residual` or an input bias.
  Combine combine_output = Combine::kNone;  // Not with combine_input.
  Quantization quantization = Quantization::kNone;
  QuantizationScale quantization_scale = QuantizationScale::kStatic;
  double output_scale = 0;     // With kStatic: a normal float > 0.
  RunSizes channel_runs = {};  // With Layout::kMixedRuns: > 0, their product `channels`; else 0.

  bool takes_other() const {
    return combine_input != Combine::kNone || combine_output != Combine::kNone;
  }
};

NormSpec InstanceNormSpec(std::int64_t channels, DType dtype);
NormSpec GroupNormSpec(std::int64_t channels, std::int64_t groups, DType dtype);
NormSpec LayerNormSpec(std::int64_t normalized_elements, DType dtype);
NormSpec RmsNormSpec(std::int64_t normalized_elements, DType dtype);
NormSpec BatchNormSpec(std::int64_t channels, DType dtype);

// Each has one element per channel, gamma and beta `styles` times as many with Style::kIndex and
// kMix. The pointers are in the memory of the backend that computes (host or device).
struct NormParams {
  ParamVector gamma;     // Absent: 1. Not with Style::kTensor.
  ParamVector beta;      // Absent: 0. Not with Style::kTensor.
  ParamVector mean;      // Statistics::kGiven only, and then required.
  ParamVector variance;  // As mean. Negative values are accepted and give NaN, as in PyTorch.
  ParamVector input_bias = {};  // Absent: 0.
};

// One request's tensors in a batch. Borrowed: they outlive the computation.
//
// x, residual, other, y and residual_out have x's shape. They are aligned to their element, but on
// the CPU inputs may begin at any byte; wider alignment is never needed, 64 bytes is fastest. In
// place, y may be exactly its segment's x, residual or other, and residual_out exactly its x or
// residual, if they have the same type and pitch. Otherwise an output overlaps no input of the
// batch and no other output. samples == 0 and spatial == 0 are allowed and write nothing; the
// pointers may then be null.
//
// Samples lie together, but those of x and y may have gaps between them, whose elements have no
// influence and are not written: x is then a slice of a wider tensor, such as a fused projection.
//
// Rows are counted in the order of samples, groups and, with Rows::kPosition, positions.
struct Segment {
  const void* x = nullptr;
  void* y = nullptr;  // x's type, or one byte an element if quantized.
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  const void* residual = nullptr;      // With NormSpec::residual, and only then.
  void* residual_out = nullptr;        // With NormSpec::residual_out, and only then.
  const NormParams* params = nullptr;  // In place of the batch's; null: the batch's.
  const void* other = nullptr;         // With combine_input or combine_output, and only then.
  // [samples, channels] each, of x's type; exactly when the spec's field of the same name is set.
  const void* gate = nullptr;
  const void* scale = nullptr;
  const void* shift = nullptr;
  // At most one of them, as NormSpec::style says. An index outside the table is InvalidArgument on
  // the CPU and makes its sample NaN on a device.
  const std::int64_t* style_index = nullptr;  // [samples], each in [0, styles)
  const void* style_weights = nullptr;        // [samples, styles] of x's type
  const void* style_tensor = nullptr;  // [samples, channels, style_spatial] in x's layout and type
  std::int64_t style_spatial = 0;      // > 0 with style_tensor, else 0.
  // The statistics that normalized each row, in the accumulation type; null where they are not
  // wanted. The mean exists with kMeanVariance alone; neither exists with given statistics. The
  // mean of a row with an infinity is an infinity or a NaN.
  void* mean_out = nullptr;
  void* rstd_out = nullptr;
  // The factors that turn quantized values back: [rows], or [rows, blocks of a row]. Exactly with
  // QuantizationScale::kRow and kBlock.
  float* scale_out = nullptr;
  RunSizes spatial_runs = {};  // With Layout::kMixedRuns: their product is `spatial`; else 0.
  // Elements from the beginning of a sample to that of the next; 0: samples lie together.
  std::int64_t x_pitch = 0;
  std::int64_t y_pitch = 0;
};

// The length of a row. The spec and the product must be valid.
constexpr std::int64_t RowLength(const NormSpec& spec, std::int64_t spatial) {
  return spec.channels / spec.groups * (spec.rows == Rows::kGroup ? spatial : 1);
}

// The rows of one sample.
constexpr std::int64_t RowsOfSample(const NormSpec& spec, std::int64_t spatial) {
  return spec.groups * (spec.rows == Rows::kGroup ? 1 : spatial);
}

// Whether specialised kernels compute this: rows of groups, given statistics or mean and squares,
// one gamma and beta for all samples, an activation, and a residual without a gate. Everything else
// is computed stage by stage.
bool IsPlain(const NormSpec& spec, const NormParams& params);

// InvalidArgument, with the field, what came and what was wanted, if the spec or the parameters
// break a condition stated above. Backends call it; a caller that validates at load need not.
Status ValidateSpec(const NormSpec& spec, const NormParams& params);

// The alignment of x that a backend needs.
enum class InputAlignment { kElement, kByte };

// InvalidArgument if a segment's counts are negative or its bytes overflow 63 bits; if a pitch is
// less than a sample; if a pointer of a segment with elements is null, set although the spec has no
// use for it, or not aligned (outputs to their element, inputs as `input` says); if its own
// parameters are not those of the spec; or if rows that are quantized in blocks do not lie together
// in memory.
Status ValidateSegments(const NormSpec& spec, const Segment* segments, std::size_t count,
                        InputAlignment input = InputAlignment::kElement);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_NORM_H_

#include "kernels/norm_c_convert.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace normd::norm::c {
namespace {

// A fixed buffer, so that an out-of-memory error can be reported without an allocation.
thread_local char last_error[512] = "";

ParamVector ToVector(const norm_vector& v) {
  // Values out of range stay out of range in eight bits.
  const std::uint32_t dtype = v.dtype > 0xff ? 0xff : v.dtype;
  return {v.data, static_cast<DType>(dtype)};
}

// Converts everything but the parameters.
Segment ToSegment(const norm_tensors& in) {
  Segment out{in.x, in.y, in.samples, in.spatial, in.residual, in.residual_out};
  out.other = in.other;
  out.gate = in.gate;
  out.scale = in.scale;
  out.shift = in.shift;
  out.style_index = in.style_index;
  out.style_weights = in.style_weights;
  out.style_tensor = in.style_tensor;
  out.style_spatial = in.style_spatial;
  out.mean_out = in.mean_out;
  out.rstd_out = in.rstd_out;
  out.scale_out = in.scale_out;
  std::copy(std::begin(in.spatial_runs), std::end(in.spatial_runs), out.spatial_runs.begin());
  out.x_pitch = in.x_pitch;
  out.y_pitch = in.y_pitch;
  return out;
}

// The C++ contract has the same values.
template <typename Enum>
constexpr bool Equal(int in_c, Enum value) {
  return in_c == static_cast<int>(value);
}
static_assert(std::size(norm_spec{}.channel_runs) == kMostRuns &&
              std::size(norm_tensors{}.spatial_runs) == kMostRuns);
static_assert(Equal(NORM_MIXED_RUNS, Layout::kMixedRuns) &&
              Equal(NORM_LARGEST_ABSOLUTE, Statistics::kLargestAbsolute) &&
              Equal(NORM_GELU_TANH, Activation::kGeluTanh) &&
              Equal(NORM_ROWS_POSITION, Rows::kPosition) &&
              Equal(NORM_COMBINE_MULTIPLY_SIGMOID, Combine::kMultiplySigmoid) &&
              Equal(NORM_STYLE_INDEX, Style::kIndex) && Equal(NORM_STYLE_MIX, Style::kMix) &&
              Equal(NORM_STYLE_TENSOR, Style::kTensor) &&
              Equal(NORM_QUANTIZATION_INT8, Quantization::kInt8) &&
              Equal(NORM_QUANTIZATION_FLOAT8_E4M3, Quantization::kFloat8E4M3) &&
              Equal(NORM_SCALE_ROW, QuantizationScale::kRow) &&
              Equal(NORM_SCALE_BLOCK, QuantizationScale::kBlock));

}  // namespace

norm_result ToResult(const Status& status) noexcept {
  return ToResult(status.code(), status.message().c_str());
}

norm_result ToResult(StatusCode code, const char* message) noexcept {
  if (code != StatusCode::kOk) std::snprintf(last_error, sizeof(last_error), "%s", message);
  return static_cast<norm_result>(code);
}

Status CheckNotNull(const char* name, const void* pointer) {
  if (pointer != nullptr) return Status();
  return InvalidArgument(std::string(name) + ": null");
}

Status CheckStructSize(const char* name, std::size_t got, std::size_t wanted) {
  if (got >= wanted) return Status();
  return InvalidArgument(std::string(name) + ".struct_size: " + std::to_string(got) +
                         ", wanted at least " + std::to_string(wanted));
}

Status ToSpec(const norm_spec* in, NormSpec* out) {
  if (Status status = CheckNotNull("spec", in); !status.ok()) return status;
  Status status = CheckStructSize("spec", in->struct_size, sizeof(norm_spec));
  if (!status.ok()) return status;
  const norm_spec& spec = *in;
  out->statistics = static_cast<Statistics>(spec.statistics);
  out->dtype = static_cast<DType>(spec.dtype);
  out->layout = static_cast<Layout>(spec.layout);
  out->activation = static_cast<Activation>(spec.activation);
  out->channels = spec.channels;
  out->groups = spec.groups;
  out->eps = spec.eps;
  out->leaky_slope = spec.leaky_slope;
  out->residual = spec.residual != 0;
  out->residual_out = spec.residual_out != 0;
  out->gate = spec.gate != 0;
  out->scale = spec.scale != 0;
  out->shift = spec.shift != 0;
  out->rows = static_cast<Rows>(spec.rows);
  out->weight_offset = spec.weight_offset;
  out->scale_offset = spec.scale_offset;
  out->style = static_cast<Style>(spec.style);
  out->styles = spec.styles;
  out->combine_input = static_cast<Combine>(spec.combine_input);
  out->combine_output = static_cast<Combine>(spec.combine_output);
  out->quantization = static_cast<Quantization>(spec.quantization);
  out->quantization_scale = static_cast<QuantizationScale>(spec.quantization_scale);
  out->output_scale = spec.output_scale;
  std::copy(std::begin(spec.channel_runs), std::end(spec.channel_runs), out->channel_runs.begin());
  return Status();
}

Status ToParams(const norm_params* in, NormParams* out) {
  if (Status status = CheckNotNull("params", in); !status.ok()) return status;
  Status status = CheckStructSize("params", in->struct_size, sizeof(norm_params));
  if (!status.ok()) return status;
  *out = {ToVector(in->gamma), ToVector(in->beta), ToVector(in->mean), ToVector(in->variance),
          ToVector(in->input_bias)};
  return Status();
}

Status ToLinearSpec(const norm_linear_spec* in, LinearNormSpec* out) {
  if (Status status = CheckNotNull("spec", in); !status.ok()) return status;
  Status status = CheckStructSize("spec", in->struct_size, sizeof(norm_linear_spec));
  if (!status.ok()) return status;
  out->in_features = in->in_features;
  out->out_features = in->out_features;
  out->dtype = static_cast<DType>(in->dtype);
  out->eps = in->eps;
  out->precision = static_cast<Precision>(in->precision);
  out->epilogue.add = in->add != 0;
  out->epilogue.multiply = in->multiply != 0;
  out->epilogue.activation = static_cast<Activation>(in->activation);
  out->epilogue.leaky_slope = in->leaky_slope;
  return Status();
}

Status ToLinearParams(const norm_linear_params* in, LinearNormParams* out) {
  if (Status status = CheckNotNull("params", in); !status.ok()) return status;
  Status status = CheckStructSize("params", in->struct_size, sizeof(norm_linear_params));
  if (!status.ok()) return status;
  *out = {ToVector(in->weight), ToVector(in->bias)};
  return Status();
}

Status CheckSegments(const void* segments, std::size_t count) {
  return count == 0 ? Status() : CheckNotNull("segments", segments);
}

Segment* Segments::Resize(std::size_t count) {
  count_ = count;
  if (count > kInline) many_ = std::make_unique<Segment[]>(count);
  return count > kInline ? many_.get() : inline_;
}

Status Segments::Take(const norm_segment* segments, std::size_t count) {
  if (Status status = CheckSegments(segments, count); !status.ok()) return status;
  Segment* const out = Resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = {segments[i].x, segments[i].y, segments[i].samples, segments[i].spatial};
  }
  return Status();
}

Status Segments::Take(const norm_batch* batch) {
  if (Status status = CheckNotNull("batch", batch); !status.ok()) return status;
  Status status = CheckStructSize("batch", batch->struct_size, sizeof(norm_batch));
  if (!status.ok()) return status;
  if (batch->count == 0) return Status();
  if (status = CheckNotNull("batch.tensors", batch->tensors); !status.ok()) return status;
  if (batch->tensors_size < sizeof(norm_tensors)) {
    return InvalidArgument("batch.tensors_size: " + std::to_string(batch->tensors_size) +
                           ", wanted at least " + std::to_string(sizeof(norm_tensors)));
  }
  Segment* const out = Resize(batch->count);
  const char* at = reinterpret_cast<const char*>(batch->tensors);
  for (std::size_t i = 0; i < batch->count; ++i, at += batch->tensors_size) {
    norm_tensors in;
    std::memcpy(&in, at, sizeof(in));  // The caller's step may have any alignment.
    out[i] = ToSegment(in);
    if (in.params == nullptr) continue;
    params_.reserve(batch->count);
    if (status = ToParams(in.params, &params_.emplace_back()); !status.ok()) return status;
    out[i].params = &params_.back();
  }
  return Status();
}

}  // namespace normd::norm::c

std::uint32_t norm_abi_version(void) { return NORM_C_ABI_VERSION; }

const char* norm_last_error(void) { return normd::norm::c::last_error; }

#include "kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "kernels/check.h"

namespace normd::norm {
namespace {

NormSpec MakeSpec(Statistics statistics, std::int64_t channels, std::int64_t groups, DType dtype) {
  NormSpec spec;
  spec.statistics = statistics;
  spec.channels = channels;
  spec.groups = groups;
  spec.dtype = dtype;
  return spec;
}

bool IsPresent(const ParamVector& param) { return param.data != nullptr; }

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
// No array of parameters has more elements: eight bytes each would overflow 63 bits.
constexpr std::int64_t kMostElements = kMax / 8;

// InvalidArgument unless the number is finite in the accumulation type too.
Status CheckFinite(const char* field, double value, DType dtype) {
  const double most = dtype == DType::kFloat64
                          ? std::numeric_limits<double>::max()
                          : static_cast<double>(std::numeric_limits<float>::max());
  if (std::fabs(value) <= most) return Status();
  return InvalidArgument(std::string(field) + ": " + TextOf(value) + ", wanted a finite number" +
                         (dtype == DType::kFloat64 ? "" : " of float's range"));
}

// Stages 1 to 3: the normalized values and their rows.
Status CheckInput(const NormSpec& spec, const NormParams& params) {
  const bool sum = spec.residual || IsPresent(params.input_bias);
  if (spec.residual_out && !sum) {
    return InvalidArgument(
        "residual_out: set without residual or input_bias, of which it is the sum");
  }
  if (spec.gate && !spec.residual) {
    return InvalidArgument("gate: set without residual, to which the gated x is added");
  }
  for (const Status& status :
       {CheckValue("rows", spec.rows, Rows::kPosition),
        CheckValue("combine_input", spec.combine_input, Combine::kMultiplySigmoid),
        CheckValue("combine_output", spec.combine_output, Combine::kMultiplySigmoid)}) {
    if (!status.ok()) return status;
  }
  if (spec.rows == Rows::kPosition && spec.statistics == Statistics::kGiven) {
    return InvalidArgument("rows: positions, but given statistics have no rows");
  }
  if (spec.combine_input != Combine::kNone && sum) {
    return InvalidArgument("combine_input: set beside residual or input_bias, wanted one of them");
  }
  if (spec.combine_input != Combine::kNone && spec.combine_output != Combine::kNone) {
    return InvalidArgument("combine_output: set beside combine_input, wanted one of them");
  }
  return Status();
}

// Stage 5: the source of scale and shift.
Status CheckStyle(const NormSpec& spec, const NormParams& params) {
  for (const Status& status : {CheckValue("style", spec.style, Style::kTensor),
                               CheckFinite("weight_offset", spec.weight_offset, spec.dtype),
                               CheckFinite("scale_offset", spec.scale_offset, spec.dtype)}) {
    if (!status.ok()) return status;
  }
  const bool affine = IsPresent(params.gamma) || IsPresent(params.beta);
  if (spec.style == Style::kIndex || spec.style == Style::kMix) {
    if (spec.styles <= 0 || spec.styles > kMostElements / spec.channels) {
      return InvalidArgument("styles: " + std::to_string(spec.styles) +
                             ", wanted the rows of the table, at least 1 and at most " +
                             std::to_string(kMostElements / spec.channels));
    }
    if (!affine) return InvalidArgument("gamma and beta: missing, wanted a table of styles");
  } else if (spec.styles != 0) {
    return InvalidArgument("styles: " + std::to_string(spec.styles) + ", wanted 0 without a table");
  }
  if (spec.style != Style::kTensor) return Status();
  if (affine) return InvalidArgument("gamma and beta: present, but a second tensor is the style");
  if (spec.groups != spec.channels || spec.rows != Rows::kGroup ||
      spec.statistics != Statistics::kMeanVariance) {
    return InvalidArgument(
        "style: a second tensor, wanted rows of one channel with their own mean and variance");
  }
  return Status();
}

// Stage 7: the form of y.
Status CheckQuantization(const NormSpec& spec) {
  for (const Status& status :
       {CheckValue("quantization", spec.quantization, Quantization::kFloat8E4M3),
        CheckValue("quantization_scale", spec.quantization_scale, QuantizationScale::kBlock)}) {
    if (!status.ok()) return status;
  }
  if (spec.quantization == Quantization::kNone) {
    if (spec.quantization_scale != QuantizationScale::kStatic) {
      return InvalidArgument("quantization_scale: set, but the output is not quantized");
    }
    if (spec.output_scale == 0) return Status();
    return InvalidArgument("output_scale: " + TextOf(spec.output_scale) +
                           ", wanted 0: the output is not quantized");
  }
  const bool is_static = spec.quantization_scale == QuantizationScale::kStatic;
  if (is_static && !(spec.output_scale >= static_cast<double>(std::numeric_limits<float>::min()) &&
                     spec.output_scale <= static_cast<double>(std::numeric_limits<float>::max()))) {
    return InvalidArgument("output_scale: " + TextOf(spec.output_scale) +
                           ", wanted a normal float greater than 0");
  }
  if (!is_static && spec.output_scale != 0) {
    return InvalidArgument("output_scale: " + TextOf(spec.output_scale) +
                           ", wanted 0: rows or blocks have their own");
  }
  if (!is_static && spec.statistics == Statistics::kGiven) {
    return InvalidArgument("quantization_scale: of rows, but given statistics have no rows");
  }
  return Status();
}

std::string RunsText(const RunSizes& runs) {
  std::string text;
  for (const std::int64_t run : runs) text += (text.empty() ? "[" : ", ") + std::to_string(run);
  return text + "]";
}

// The layout of the elements.
Status CheckLayout(const NormSpec& spec) {
  if (Status status = CheckValue("layout", spec.layout, Layout::kMixedRuns); !status.ok()) {
    return status;
  }
  if (spec.layout != Layout::kMixedRuns) {
    if (spec.channel_runs == RunSizes{}) return Status();
    return InvalidArgument("channel_runs: " + RunsText(spec.channel_runs) +
                           ", wanted zeros: the layout is not of mixed runs");
  }
  if (ProductOf(spec.channel_runs) != spec.channels) {
    return InvalidArgument("channel_runs: " + RunsText(spec.channel_runs) +
                           ", wanted sizes whose product is " + std::to_string(spec.channels) +
                           " channels");
  }
  if (spec.rows != Rows::kPosition) {
    return InvalidArgument("rows: of groups, wanted positions with a layout of mixed runs");
  }
  if (spec.groups != 1) {
    return InvalidArgument("groups: " + std::to_string(spec.groups) +
                           ", wanted 1 with a layout of mixed runs");
  }
  return Status();
}

}  // namespace

NormSpec InstanceNormSpec(std::int64_t channels, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, channels, channels, dtype);
}

NormSpec GroupNormSpec(std::int64_t channels, std::int64_t groups, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, channels, groups, dtype);
}

NormSpec LayerNormSpec(std::int64_t normalized_elements, DType dtype) {
  return MakeSpec(Statistics::kMeanVariance, normalized_elements, 1, dtype);
}

NormSpec RmsNormSpec(std::int64_t normalized_elements, DType dtype) {
  return MakeSpec(Statistics::kMeanSquare, normalized_elements, 1, dtype);
}

NormSpec BatchNormSpec(std::int64_t channels, DType dtype) {
  return MakeSpec(Statistics::kGiven, channels, channels, dtype);
}

Status ValidateSpec(const NormSpec& spec, const NormParams& params) {
  if (!IsNormalized(spec.dtype)) {
    return InvalidArgument("dtype: " + std::to_string(static_cast<int>(spec.dtype)) +
                           " is not float32, float64, float16 or bfloat16");
  }
  if (spec.channels <= 0 || spec.channels > kMostElements) {
    return InvalidArgument("channels: " + std::to_string(spec.channels) +
                           ", wanted at least 1 and at most " + std::to_string(kMostElements));
  }
  if (spec.groups <= 0 || spec.channels % spec.groups != 0) {
    return InvalidArgument("groups: " + std::to_string(spec.groups) + ", wanted a divisor of " +
                           std::to_string(spec.channels) + " channels");
  }
  if (Status status = CheckEps(spec.eps); !status.ok()) return status;
  for (const Status& status :
       {CheckValue("statistics", spec.statistics, Statistics::kLargestAbsolute),
        CheckActivation(spec.activation), CheckInput(spec, params), CheckLayout(spec),
        CheckStyle(spec, params), CheckQuantization(spec)}) {
    if (!status.ok()) return status;
  }
  const bool given = spec.statistics == Statistics::kGiven;
  if (given != (params.mean.data != nullptr) || given != (params.variance.data != nullptr)) {
    return InvalidArgument(given ? "mean and variance: missing, the statistics are given"
                                 : "mean and variance: present, but each row takes its own");
  }
  for (const Status& status :
       {CheckParam("gamma", params.gamma), CheckParam("beta", params.beta),
        CheckParam("mean", params.mean), CheckParam("variance", params.variance),
        CheckParam("input_bias", params.input_bias)}) {
    if (!status.ok()) return status;
  }
  return Status();
}

namespace {

Status RefuseSegment(std::size_t index, const char* field, const std::string& why) {
  return InvalidArgument("segments[" + std::to_string(index) + "]." + field + ": " + why);
}

// InvalidArgument unless exactly the wanted tensors are there and aligned.
Status CheckTensors(const NormSpec& spec, const Segment& segment, std::size_t index,
                    InputAlignment input) {
  struct Tensor {
    const char* name;
    const void* data;
    bool wanted;
    std::size_t alignment;
  };
  const std::size_t element = SizeOf(spec.dtype);
  const std::size_t aligned = input == InputAlignment::kElement ? element : 1;
  const bool bytes = input == InputAlignment::kByte;
  const bool quantized = spec.quantization != Quantization::kNone;
  const Tensor tensors[] = {
      {"x", segment.x, true, aligned},
      {"y", segment.y, true, quantized ? 1 : element},
      {"residual", segment.residual, spec.residual, aligned},
      {"residual_out", segment.residual_out, spec.residual_out, element},
      {"other", segment.other, spec.takes_other(), aligned},
      {"gate", segment.gate, spec.gate, aligned},
      {"scale", segment.scale, spec.scale, aligned},
      {"shift", segment.shift, spec.shift, aligned},
      {"style_index", segment.style_index, spec.style == Style::kIndex, bytes ? 1U : 8U},
      {"style_weights", segment.style_weights, spec.style == Style::kMix, aligned},
      {"style_tensor", segment.style_tensor, spec.style == Style::kTensor, aligned},
      {"scale_out", segment.scale_out,
       quantized && spec.quantization_scale != QuantizationScale::kStatic, 4}};
  for (const Tensor& tensor : tensors) {
    if (tensor.wanted && tensor.data == nullptr) return RefuseSegment(index, tensor.name, "null");
    if (!tensor.wanted && tensor.data != nullptr) {
      return RefuseSegment(index, tensor.name, "set, but the spec has none");
    }
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % tensor.alignment != 0) {
      return RefuseSegment(index, tensor.name, "not aligned to its element");
    }
  }
  return Status();
}

// InvalidArgument unless the outputs that a segment asks for beside y exist.
Status CheckStatisticsOut(const NormSpec& spec, const Segment& segment, std::size_t index) {
  const std::size_t element = spec.dtype == DType::kFloat64 ? 8 : 4;
  if (segment.mean_out != nullptr && spec.statistics != Statistics::kMeanVariance) {
    return RefuseSegment(index, "mean_out", "set, but rows are normalized without a mean");
  }
  if (segment.rstd_out != nullptr && spec.statistics == Statistics::kGiven) {
    return RefuseSegment(index, "rstd_out", "set, but the statistics are given");
  }
  if (reinterpret_cast<std::uintptr_t>(segment.mean_out) % element != 0) {
    return RefuseSegment(index, "mean_out", "not aligned to its element");
  }
  if (reinterpret_cast<std::uintptr_t>(segment.rstd_out) % element != 0) {
    return RefuseSegment(index, "rstd_out", "not aligned to its element");
  }
  return Status();
}

Status CheckRuns(const NormSpec& spec, const Segment& segment, std::size_t index) {
  if (spec.layout != Layout::kMixedRuns) {
    if (segment.spatial_runs == RunSizes{}) return Status();
    return RefuseSegment(
        index, "spatial_runs",
        RunsText(segment.spatial_runs) + ", wanted zeros: the spec's layout is not of mixed runs");
  }
  if (ProductOf(segment.spatial_runs) == segment.spatial) return Status();
  return RefuseSegment(index, "spatial_runs",
                       RunsText(segment.spatial_runs) + ", wanted sizes whose product is " +
                           std::to_string(segment.spatial));
}

// InvalidArgument unless samples do not overlap and the last one ends within 63 bits of bytes. The
// samples' own bytes fit.
Status CheckPitches(const NormSpec& spec, const Segment& segment, std::size_t index) {
  const std::int64_t sample = spec.channels * segment.spatial;
  const std::int64_t most = kMax / static_cast<std::int64_t>(SizeOf(spec.dtype));
  for (const auto& [name, pitch] :
       {std::pair("x_pitch", segment.x_pitch), std::pair("y_pitch", segment.y_pitch)}) {
    if (pitch == 0) continue;
    if (pitch < sample) {
      return RefuseSegment(index, name,
                           std::to_string(pitch) + ", wanted 0 or at least the " +
                               std::to_string(sample) + " elements of a sample");
    }
    if (segment.samples > 1 && pitch > (most - sample) / (segment.samples - 1)) {
      return RefuseSegment(index, name, "bytes overflow 63 bits");
    }
  }
  return Status();
}

// Checks the sizes that do not follow from x's shape.
Status CheckSizes(const NormSpec& spec, const Segment& segment, std::size_t index) {
  if ((spec.style == Style::kTensor) != (segment.style_spatial > 0) || segment.style_spatial < 0) {
    return RefuseSegment(index, "style_spatial",
                         std::to_string(segment.style_spatial) +
                             (spec.style == Style::kTensor ? ", wanted at least 1" : ", wanted 0"));
  }
  std::int64_t limit = kMax / static_cast<std::int64_t>(SizeOf(spec.dtype));
  for (const std::int64_t factor :
       {segment.samples, std::max<std::int64_t>(segment.style_spatial, 1), spec.channels}) {
    if (factor > limit) return RefuseSegment(index, "style_spatial", "bytes overflow 63 bits");
    limit /= factor;
  }
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  std::int64_t bytes = 0;
  if (spec.style == Style::kMix && (!MultiplyFits(spec.styles, element, &bytes) ||
                                    !MultiplyFits(bytes, segment.samples, &bytes))) {
    return RefuseSegment(index, "style_weights", "bytes overflow 63 bits");
  }
  if (spec.quantization == Quantization::kNone ||
      spec.quantization_scale != QuantizationScale::kBlock || segment.spatial == 1) {
    return Status();
  }
  if (spec.rows == Rows::kPosition && spec.layout == Layout::kChannelsLast) return Status();
  if (spec.rows == Rows::kGroup && spec.layout == Layout::kChannelsFirst) return Status();
  return RefuseSegment(index, "spatial",
                       std::to_string(segment.spatial) +
                           ", wanted 1: quantization in blocks wants rows that lie together");
}

}  // namespace

bool IsPlain(const NormSpec& spec, const NormParams& params) {
  return spec.statistics <= Statistics::kGiven && !spec.gate && !spec.scale && !spec.shift &&
         spec.rows == Rows::kGroup && spec.style == Style::kNone && !spec.takes_other() &&
         spec.quantization == Quantization::kNone && !IsPresent(params.input_bias);
}

Status ValidateSegments(const NormSpec& spec, const Segment* segments, std::size_t count,
                        InputAlignment input) {
  for (std::size_t i = 0; i < count; ++i) {
    const Segment& segment = segments[i];
    if (segment.samples < 0) {
      return RefuseSegment(i, "samples", std::to_string(segment.samples) + " is negative");
    }
    if (segment.spatial < 0) {
      return RefuseSegment(i, "spatial", std::to_string(segment.spatial) + " is negative");
    }
    if (segment.samples == 0 || segment.spatial == 0) continue;
    // Scales and statistics have at most as many elements as x, of at least four bytes.
    std::int64_t limit =
        kMax / static_cast<std::int64_t>(std::max(SizeOf(spec.dtype), std::size_t{4}));
    for (std::int64_t factor : {segment.samples, segment.spatial, spec.channels}) {
      if (factor > limit) return RefuseSegment(i, "samples", "bytes overflow 63 bits");
      limit /= factor;
    }
    for (const Status& status :
         {CheckRuns(spec, segment, i), CheckPitches(spec, segment, i),
          CheckTensors(spec, segment, i, input), CheckStatisticsOut(spec, segment, i),
          CheckSizes(spec, segment, i)}) {
      if (!status.ok()) return status;
    }
    if (segment.params == nullptr) continue;
    if (Status status = ValidateSpec(spec, *segment.params); !status.ok()) {
      return RefuseSegment(i, "params", status.message());
    }
  }
  return Status();
}

}  // namespace normd::norm

#include "kernels/bench/case.h"

#include <charconv>
#include <limits>

namespace normd::norm::bench {
namespace {

bool ParsePositive(const std::string& text, std::int64_t* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && *value > 0;
}

Status ParseShape(const std::string& text, std::vector<std::int64_t>* dims) {
  std::int64_t elements = 1;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    std::int64_t dim = 0;
    if (!ParsePositive(text.substr(begin, end - begin), &dim) ||
        elements > std::numeric_limits<std::int64_t>::max() / 8 / dim) {
      return InvalidArgument("shape: \"" + text +
                             "\", wanted positive dimensions such as 16x64x32");
    }
    elements *= dim;
    dims->push_back(dim);
    begin = end + 1;
  }
  if (dims->size() < 2) {
    return InvalidArgument("shape: \"" + text + "\", wanted at least two dimensions");
  }
  return Status();
}

Status ParseDType(const std::string& text, DType* dtype) {
  const struct {
    const char* brief;
    DType dtype;
  } kTypes[] = {{"f32", DType::kFloat32},
                {"f64", DType::kFloat64},
                {"f16", DType::kFloat16},
                {"bf16", DType::kBFloat16}};
  for (const auto& type : kTypes) {
    if (text != type.brief && text != norm::Name(type.dtype)) continue;
    *dtype = type.dtype;
    return Status();
  }
  return InvalidArgument("dtype: \"" + text + "\", wanted float32, float64, float16 or bfloat16");
}

Status ParseActivation(const std::string& text, Activation* activation) {
  const struct {
    const char* name;
    Activation activation;
  } kActivations[] = {{"none", Activation::kNone},
                      {"relu", Activation::kRelu},
                      {"leaky_relu", Activation::kLeakyRelu},
                      {"silu", Activation::kSilu},
                      {"gelu", Activation::kGeluErf},
                      {"gelu_tanh", Activation::kGeluTanh}};
  for (const auto& known : kActivations) {
    if (text != known.name) continue;
    *activation = known.activation;
    return Status();
  }
  return InvalidArgument("activation: \"" + text +
                         "\", wanted relu, leaky_relu, silu, gelu or gelu_tanh");
}

// Parses "name[:row|:block]" of a quantized output. False for any other text.
bool ParseQuantization(const std::string& text, NormSpec* spec) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string scale = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (name != "int8" && name != "e4m3") return false;
  if (!scale.empty() && scale != "row" && scale != "block") return false;
  spec->quantization = name == "int8" ? Quantization::kInt8 : Quantization::kFloat8E4M3;
  spec->quantization_scale = scale == "row"     ? QuantizationScale::kRow
                             : scale == "block" ? QuantizationScale::kBlock
                                                : QuantizationScale::kStatic;
  if (scale.empty()) spec->output_scale = 0.05;
  return true;
}

// Parses one stage after a "+".
Status ParseStage(const std::string& text, Case* c) {
  NormSpec* const spec = &c->spec;
  if (text == "residual") {
    spec->residual = spec->residual_out = true;
  } else if (text == "gate") {
    spec->gate = true;
  } else if (text == "scale") {
    spec->scale = true;
  } else if (text == "shift") {
    spec->shift = true;
  } else if (text == "input_bias") {
    c->input_bias = true;
  } else if (text == "statistics") {
    c->statistics = true;
  } else if (text == "input_multiply") {
    spec->combine_input = Combine::kMultiply;
  } else if (text == "input_multiply_silu") {
    spec->combine_input = Combine::kMultiplySilu;
  } else if (text == "multiply") {
    spec->combine_output = Combine::kMultiply;
  } else if (text == "multiply_silu") {
    spec->combine_output = Combine::kMultiplySilu;
  } else if (text == "style_tensor") {
    spec->style = Style::kTensor;
  } else if (text.starts_with("styles:") && ParsePositive(text.substr(7), &spec->styles)) {
    spec->style = Style::kIndex;
  } else if (!ParseQuantization(text, spec)) {
    return ParseActivation(text, &spec->activation);
  }
  return Status();
}

// Parses "name[:groups]" into a spec for `channels`; the caller fills in dtype and layout.
Status ParseNorm(const std::string& text, std::int64_t channels, NormSpec* spec) {
  const DType dtype = spec->dtype;
  const bool positions = text.starts_with("position_");
  const std::string name = positions ? text.substr(9) : text;
  if (name == "instance_norm" && !positions) {
    *spec = InstanceNormSpec(channels, dtype);
  } else if (name == "batch_norm" && !positions) {
    *spec = BatchNormSpec(channels, dtype);
  } else if (name == "layer_norm") {
    *spec = LayerNormSpec(channels, dtype);
  } else if (name == "rms_norm" || name == "l1_norm" || name == "l2_norm" || name == "max_norm") {
    *spec = RmsNormSpec(channels, dtype);
    if (name == "l1_norm") spec->statistics = Statistics::kSumOfAbsolutes;
    if (name == "l2_norm") spec->statistics = Statistics::kRootOfSquares;
    if (name == "max_norm") spec->statistics = Statistics::kLargestAbsolute;
  } else if (std::int64_t groups = 0;
             name.starts_with("group_norm:") && ParsePositive(name.substr(11), &groups)) {
    *spec = GroupNormSpec(channels, groups, dtype);
  } else {
    return InvalidArgument("operation: \"" + text +
                           "\", wanted instance_norm, batch_norm, layer_norm, rms_norm, l1_norm, "
                           "l2_norm, max_norm, group_norm:GROUPS, position_layer_norm or "
                           "position_rms_norm");
  }
  if (positions) spec->rows = Rows::kPosition;
  return Status();
}

// Divides a case's dimensions from 1 on into the normalized ones, such as "1.3", and the others.
Status CutAxes(const std::string& text, Case* c) {
  RunSizes channels, positions;
  channels.fill(1);
  positions.fill(1);
  std::size_t run = 0;
  std::size_t before = 0;  // The previous axis.
  c->samples = 1;
  const auto refuse = [&] {
    return InvalidArgument("operation: axes \"" + text +
                           "\", wanted ascending dimensions from 1 on, such as 1.3, of " +
                           c->shape());
  };
  const auto skip_to = [&](std::size_t axis) {
    for (std::size_t i = before == 0 ? 0 : before + 1; i < axis; ++i) {
      (before == 0 ? c->samples : positions[run]) *= c->dims[i];
    }
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    std::int64_t axis = 0;
    if (!ParsePositive(text.substr(begin, end - begin), &axis)) return refuse();
    const auto at = static_cast<std::size_t>(axis);
    if (at <= before || at >= c->dims.size()) return refuse();
    skip_to(at);
    if (before > 0 && at > before + 1 && ++run == kMostRuns) return refuse();
    channels[run] *= c->dims[at];
    before = at;
    begin = end + 1;
  }
  skip_to(c->dims.size());
  c->spec.layout = Layout::kMixedRuns;
  c->spec.rows = Rows::kPosition;
  c->spec.channels = c->spatial = 1;
  for (std::size_t i = 0; i < kMostRuns; ++i) {
    c->spec.channels *= channels[i];
    c->spatial *= positions[i];
  }
  c->spec.channel_runs = channels;
  c->spatial_runs = positions;
  return Status();
}

bool IsRowNorm(const std::string& operation) {
  for (const char* name : {"layer_norm", "rms_norm", "l1_norm", "l2_norm", "max_norm"}) {
    if (operation.starts_with(name)) return true;
  }
  return false;
}

}  // namespace

const char* Name(Layout layout) {
  switch (layout) {
    case Layout::kChannelsFirst: return "first";
    case Layout::kChannelsLast: return "last";
    case Layout::kMixedRuns: break;
  }
  return "mixed_runs";
}

std::int64_t Case::moved_bytes() const {
  const int tensors = 1 + (spec.residual_out ? 1 : 0) + (has_second() ? 1 : 0);
  const std::int64_t y = spec.quantization == Quantization::kNone ? tensor_bytes() : elements();
  return tensors * tensor_bytes() + y;
}

std::string Case::shape() const {
  std::string text;
  for (std::int64_t dim : dims) {
    if (!text.empty()) text += 'x';
    text += std::to_string(dim);
  }
  return text;
}

std::string Case::name() const {
  return op + " " + norm::Name(spec.dtype) + " " + bench::Name(spec.layout) + " " + shape();
}

Status MakeCase(const std::string& operation, const std::string& dtype, const std::string& layout,
                const std::string& shape, Case* out) {
  Case c;
  c.op = operation;
  if (Status status = ParseShape(shape, &c.dims); !status.ok()) return status;
  if (Status status = ParseDType(dtype, &c.spec.dtype); !status.ok()) return status;
  if (layout != "first" && layout != "last") {
    return InvalidArgument("layout: \"" + layout + "\", wanted first or last");
  }
  c.samples = c.dims[0];
  for (std::size_t i = 2; i < c.dims.size(); ++i) c.spatial *= c.dims[i];
  std::int64_t channels = c.dims[1];
  if (IsRowNorm(operation)) {
    channels *= c.spatial;
    c.spatial = 1;
  }
  const std::size_t plus = operation.find('+');
  const std::size_t colon = operation.substr(0, plus).find(':');
  const bool over_axes = IsRowNorm(operation) && colon != std::string::npos;
  const std::string norm = operation.substr(0, over_axes ? colon : plus);
  if (Status status = ParseNorm(norm, channels, &c.spec); !status.ok()) return status;
  c.spec.layout = layout == "last" ? Layout::kChannelsLast : Layout::kChannelsFirst;
  if (over_axes) {
    const std::string axes =
        operation.substr(colon + 1, plus == std::string::npos ? plus : plus - colon - 1);
    if (Status status = CutAxes(axes, &c); !status.ok()) return status;
  }
  for (std::size_t begin = plus; begin != std::string::npos;) {
    const std::size_t end = operation.find('+', begin + 1);
    const std::string stage = operation.substr(begin + 1, end - begin - 1);
    if (Status status = ParseStage(stage, &c); !status.ok()) return status;
    begin = end;
  }
  if (c.spec.channels % c.spec.groups != 0) {
    return InvalidArgument("groups: " + std::to_string(c.spec.groups) + " does not divide " +
                           std::to_string(channels) + " channels of " + shape);
  }
  *out = std::move(c);
  return Status();
}

std::vector<Case> DefaultSuite() {
  const struct {
    const char* operation;
    const char* dtypes[3];
    bool both_layouts;
    const char* shape;
  } kLines[] = {
      {"instance_norm", {"f32"}, true, "112x64x512x512"},
      {"group_norm:8", {"f32"}, true, "112x64x512x512"},
      {"batch_norm", {"f32", "f16"}, true, "112x64x512x512"},
      {"layer_norm", {"f32", "bf16", "f16"}, false, "65536x1024"},
      {"layer_norm", {"f32", "bf16", "f16"}, false, "16384x4096"},
      {"layer_norm", {"f32", "bf16", "f16"}, false, "4096x32768"},
      {"layer_norm", {"f32", "bf16"}, false, "2048x65536"},
      {"layer_norm", {"f32", "bf16"}, false, "16381x4097"},
      {"layer_norm", {"f32"}, false, "16x4194304"},
      {"rms_norm", {"f32", "bf16", "f16"}, false, "65536x1024"},
      {"rms_norm", {"f32", "bf16", "f16"}, false, "8192x8192"},
      {"rms_norm", {"f32", "bf16"}, false, "2048x65536"},
      {"group_norm:32+silu", {"f16", "bf16", "f32"}, true, "16x512x128x128"},
      {"group_norm:32+silu", {"f16"}, true, "2x320x64x64"},
      {"group_norm:32+silu", {"f16"}, true, "32x256x64x64"},
      {"group_norm:4", {"f32"}, true, "8x64x32x32"},
      {"instance_norm", {"f32", "f64"}, true, "1x64x512x512"},
      {"instance_norm", {"f32"}, true, "1x64x56x56"},
      {"instance_norm", {"f32"}, true, "8x64x56x56"},
      {"layer_norm+gelu", {"f32"}, false, "64x768"},
      {"rms_norm+residual", {"bf16"}, false, "16384x4096"},
      {"rms_norm+residual", {"bf16"}, false, "8192x7168"},
      {"rms_norm+e4m3:row", {"bf16"}, false, "16384x4096"},
      {"l2_norm", {"bf16"}, false, "65536x768"},
      {"position_layer_norm", {"f16"}, false, "16x512x128x128"},
      {"position_rms_norm", {"f32"}, false, "112x64x512x512"},
      {"instance_norm", {"f32"}, false, "16x64x512x512"},
      {"instance_norm+styles:32", {"f32"}, false, "16x64x512x512"},
  };
  std::vector<Case> suite;
  for (const auto& line : kLines) {
    for (const char* dtype : line.dtypes) {
      if (dtype == nullptr) continue;
      for (const char* layout : {"first", "last"}) {
        if (layout[0] == 'l' && !line.both_layouts) continue;
        Case c;
        if (MakeCase(line.operation, dtype, layout, line.shape, &c).ok()) {
          suite.push_back(std::move(c));
        }
      }
    }
  }
  Case modulated;
  if (MakeCase("position_layer_norm+residual+gate+scale+shift", "bf16", "last", "4x3072x4096",
               &modulated)
          .ok()) {
    suite.push_back(std::move(modulated));
  }
  return suite;
}

void ScaleTo(std::int64_t max_bytes, Case* c) {
  // Dimensions between the first and the axes count as samples too.
  const std::int64_t of_first = c->samples / c->dims[0];
  while (c->dims[0] > 1 && c->tensor_bytes() > max_bytes) {
    c->dims[0] /= 2;
    c->samples = c->dims[0] * of_first;
  }
}

}  // namespace normd::norm::bench

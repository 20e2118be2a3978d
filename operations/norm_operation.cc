#include "operations/norm_operation.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operations/kernel_program.h"

namespace normd {
namespace {

constexpr absl::string_view kNormNames[] = {"weight", "bias", "running_mean", "running_var"};
constexpr norm::DType kDTypes[] = {norm::DType::kFloat32, norm::DType::kFloat64,
                                   norm::DType::kFloat16, norm::DType::kBFloat16};

norm::Activation ToKernel(v1::Activation activation) {
  switch (activation) {
    case v1::RELU: return norm::Activation::kRelu;
    case v1::LEAKY_RELU: return norm::Activation::kLeakyRelu;
    case v1::SILU: return norm::Activation::kSilu;
    case v1::GELU_ERF: return norm::Activation::kGeluErf;
    case v1::GELU_TANH: return norm::Activation::kGeluTanh;
    default: return norm::Activation::kNone;
  }
}

void SetQuantization(const v1::Quantization& quantization, norm::NormSpec& spec) {
  spec.quantization = quantization.dtype() == v1::INT8 ? norm::Quantization::kInt8
                                                       : norm::Quantization::kFloat8E4M3;
  switch (quantization.scales()) {
    case v1::PER_ROW: spec.quantization_scale = norm::QuantizationScale::kRow; return;
    case v1::PER_BLOCK: spec.quantization_scale = norm::QuantizationScale::kBlock; return;
    default: spec.output_scale = quantization.scale();
  }
}

// Sets the signature's type of a tensor with these types in requests of float16 and of float64.
void SetDType(norm::DType of_float16, norm::DType of_float64, TensorSignature& tensor) {
  if (of_float16 == norm::DType::kFloat16) return;
  tensor.dtype = of_float16;
  if (of_float64 != of_float16) tensor.dtype_of_float64 = of_float64;
}

norm::NormSpec WithDType(norm::NormSpec spec, norm::DType dtype) {
  spec.dtype = dtype;
  return spec;
}

absl::string_view NameOf(norm::SegmentOutput output) {
  switch (output) {
    case norm::SegmentOutput::kY: return "y";
    case norm::SegmentOutput::kResidualOut: return "residual_out";
    case norm::SegmentOutput::kScale: return "y_scale";
    case norm::SegmentOutput::kMean: return "mean";
    case norm::SegmentOutput::kRstd: break;
  }
  return "rstd";
}

bool IsLikeX(norm::SegmentOutput output) {
  return output == norm::SegmentOutput::kY || output == norm::SegmentOutput::kResidualOut;
}

ShapePattern WithOwnDimensions(ShapePattern pattern) {
  std::replace(pattern.begin(), pattern.end(), kAnyDimensions, kOwnDimensions);
  return pattern;
}

}  // namespace

absl::Span<const absl::string_view> TorchNormNames() { return kNormNames; }

void SetCommon(const v1::ModelConfig& config, norm::NormSpec& spec) {
  spec.layout = config.layout() == v1::CHANNELS_LAST ? norm::Layout::kChannelsLast
                                                     : norm::Layout::kChannelsFirst;
  spec.activation = ToKernel(config.activation());
  if (config.has_leaky_slope()) spec.leaky_slope = config.leaky_slope();
  if (config.has_quantization()) SetQuantization(config.quantization(), spec);
}

CutRule CutRuleOf(const norm::NormSpec& spec) {
  // The rows of a channels-last sample alternate; several tensors are cut between samples.
  if (spec.layout == norm::Layout::kChannelsLast || spec.rows == norm::Rows::kPosition ||
      norm::InputsOf(spec).size() > 1) {
    return {};
  }
  return {CutRule::At::kRow, spec.groups, spec.channels / spec.groups};
}

NormOperation::NormOperation(const v1::ModelConfig& config, const NormCase& norm,
                             const Shape& parameter_shape, const Patterns& patterns)
    : spec_(norm.spec), takes_machine_epsilon_(norm.takes_machine_epsilon) {
  const norm::Layout layout = spec_.layout;
  SetCommon(config, spec_);
  if (layout != norm::Layout::kChannelsFirst) spec_.layout = layout;
  inputs_ = norm::InputsOf(spec_);
  outputs_ = norm::OutputsOf(spec_);
  SetInputs(patterns.x, norm.other_name);
  SetOutputs(patterns);
  SetParameters(norm.parameters, parameter_shape);
}

void NormOperation::SetInputs(const ShapePattern& shape, absl::string_view other_name) {
  const ShapePattern of_samples = {kAnySize, spec_.channels};
  for (const norm::SegmentInput input : inputs_) {
    std::vector<TensorSignature>& inputs = signature_.inputs;
    switch (input) {
      case norm::SegmentInput::kX: inputs.push_back({"x", shape}); break;
      case norm::SegmentInput::kResidual: inputs.push_back({"residual", shape}); break;
      case norm::SegmentInput::kOther: inputs.push_back({other_name, shape}); break;
      case norm::SegmentInput::kGate: inputs.push_back({"gate", of_samples}); break;
      case norm::SegmentInput::kScale: inputs.push_back({"scale", of_samples}); break;
      case norm::SegmentInput::kShift: inputs.push_back({"shift", of_samples}); break;
      case norm::SegmentInput::kStyleIndex: {
        TensorSignature index{"style_index", {kAnySize}};
        index.dtype = norm::DType::kInt64;
        index.values = spec_.styles;
        inputs.push_back(std::move(index));
        break;
      }
      case norm::SegmentInput::kStyleWeights:
        inputs.push_back({"style_weights", {kAnySize, spec_.styles}});
        break;
      case norm::SegmentInput::kStyleTensor:
        inputs.push_back({"style", WithOwnDimensions(shape)});
        break;
    }
  }
}

void NormOperation::SetOutputs(const Patterns& patterns) {
  const norm::NormSpec of_float16 = WithDType(spec_, norm::DType::kFloat16);
  const norm::NormSpec of_float64 = WithDType(spec_, norm::DType::kFloat64);
  for (const norm::SegmentOutput output : outputs_) {
    TensorSignature tensor{NameOf(output), IsLikeX(output) ? patterns.x : patterns.rows};
    if (output == norm::SegmentOutput::kScale) tensor.shape.back() *= ScalesOfRow();
    SetDType(norm::TypeOf(of_float16, output), norm::TypeOf(of_float64, output), tensor);
    tensor.on_request = norm::IsOptional(output);
    signature_.outputs.push_back(std::move(tensor));
  }
}

std::int64_t NormOperation::ScalesOfRow() const {
  if (spec_.quantization_scale != norm::QuantizationScale::kBlock) return 1;
  return (spec_.channels / spec_.groups + norm::kQuantizationBlock - 1) / norm::kQuantizationBlock;
}

// The elements of a block are adjacent in every tensor that Divide accepts.
bool NormOperation::Quantizes(v1::QuantizationScales scales) const {
  if (scales == v1::PER_TENSOR) return true;
  if (spec_.statistics == norm::Statistics::kGiven) return false;
  if (scales == v1::PER_ROW) return true;
  return spec_.rows == norm::Rows::kGroup ? !has_channels()
                                          : spec_.layout == norm::Layout::kChannelsLast;
}

void NormOperation::SetParameters(const NormParameters& parameters, const Shape& shape) {
  std::vector<ExpectedParameter>& expected = parameters_.expected;
  if (parameters.weight) expected.push_back({"weight", !parameters.bias, shape});
  if (parameters.bias) expected.push_back({"bias", false, shape});
  if (parameters.running) {
    expected.push_back({"running_mean", true, shape});
    expected.push_back({"running_var", true, shape});
  }
  parameters_.torch_names = kNormNames;
  parameters_.norm_shape = shape;
}

std::string NormOperation::DTypesText() const { return "FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"; }

namespace {

std::int64_t BytesOf(const TensorType& tensor) {
  return tensor.shape.elements() * static_cast<std::int64_t>(norm::SizeOf(tensor.dtype));
}

// Checks that the tensors have at most 2^63 bytes together.
absl::Status CheckBytes(absl::Span<const TensorType> tensors) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (const TensorType& tensor : tensors) {
    const auto element = static_cast<std::int64_t>(norm::SizeOf(tensor.dtype));
    if (tensor.shape.elements() > left / element) {
      return absl::InvalidArgumentError(absl::StrCat("shape: ", tensor.shape.ToString(), " of ",
                                                     norm::Name(tensor.dtype),
                                                     " has over 2^63 bytes"));
    }
    left -= BytesOf(tensor);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Geometry> NormOperation::Check(absl::Span<const TensorType> inputs) const {
  const TensorType& x = inputs.front();
  Geometry geometry;
  absl::Status status = Divide(x.shape, geometry);
  absl::InlinedVector<TensorType, kInlinedOutputs> outputs;
  if (status.ok()) outputs = Outputs(inputs);
  if (status.ok()) status = CheckBytes(outputs);
  if (status.ok()) status = CheckBytes(inputs);
  if (!status.ok() && inputs.size() > 1) {
    status = absl::Status(status.code(), absl::StrCat("input \"x\": ", status.message()));
  }
  for (std::size_t i = 1; i < inputs.size() && status.ok(); ++i) {
    status = CheckFurther(i, inputs[i], x);
  }
  if (!status.ok()) return status;
  // The product fits: a sample has no more rows than elements, and Shape bounds all elements.
  geometry.rows = geometry.samples * norm::RowsOfSample(spec_, geometry.spatial);
  geometry.workspace_bytes = WorkspaceBytes(geometry, x.dtype);
  for (const TensorType& input : inputs) {
    geometry.inputs.push_back({BytesOf(input), input.dtype});
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool on_request = signature_.outputs[i].on_request;
    geometry.outputs.push_back({on_request ? 0 : BytesOf(outputs[i]), outputs[i].dtype});
  }
  return geometry;
}

// Checks an input after x, which has been checked.
absl::Status NormOperation::CheckFurther(std::size_t index, const TensorType& input,
                                         const TensorType& x) const {
  const auto wrong = [&](absl::string_view field, absl::string_view got, absl::string_view want) {
    return absl::InvalidArgumentError(absl::StrCat("input \"", signature_.inputs[index].name,
                                                   "\": ", field, ": ", got, ", wanted ", want));
  };
  const bool is_index = inputs_[index] == norm::SegmentInput::kStyleIndex;
  if (is_index && input.dtype != norm::DType::kInt64) {
    return wrong("dtype", norm::Name(input.dtype), norm::Name(norm::DType::kInt64));
  }
  if (!is_index && input.dtype != x.dtype) {
    return wrong("dtype", norm::Name(input.dtype),
                 absl::StrCat(norm::Name(x.dtype), " as of \"x\""));
  }
  if (norm::IsLikeX(inputs_[index])) {
    if (input.shape == x.shape) return absl::OkStatus();
    return wrong("shape", input.shape.ToString(), absl::StrCat(x.shape.ToString(), " as of \"x\""));
  }
  if (inputs_[index] == norm::SegmentInput::kStyleTensor) {
    const absl::Status status = CheckStyle(input, x);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(
        absl::StrCat("input \"", signature_.inputs[index].name, "\": ", status.message()));
  }
  if (is_index) {
    if (input.shape.rank() == 1 && input.shape.dim(0) == x.shape.dim(0)) return absl::OkStatus();
    return wrong("shape", input.shape.ToString(),
                 absl::StrCat("[", x.shape.dim(0), "] for \"x\" of ", x.shape.ToString()));
  }
  const std::int64_t width = signature_.inputs[index].shape.back();
  if (input.shape.rank() == 2 && input.shape.dim(0) == x.shape.dim(0) &&
      input.shape.dim(1) == width) {
    return absl::OkStatus();
  }
  return wrong(
      "shape", input.shape.ToString(),
      absl::StrCat("[", x.shape.dim(0), ", ", width, "] for \"x\" of ", x.shape.ToString()));
}

absl::Status NormOperation::CheckStyle(const TensorType& style, const TensorType& x) const {
  Geometry geometry;
  if (absl::Status status = Divide(style.shape, geometry); !status.ok()) return status;
  if (style.shape.dim(0) == x.shape.dim(0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shape[0]: ", style.shape.dim(0), " in ",
                                                 style.shape.ToString(), ", wanted ",
                                                 x.shape.dim(0), " as of \"x\""));
}

absl::InlinedVector<TensorType, kInlinedOutputs> NormOperation::Outputs(
    absl::Span<const TensorType> inputs) const {
  const TensorType& x = inputs.front();
  const norm::NormSpec spec = WithDType(spec_, x.dtype);
  absl::InlinedVector<TensorType, kInlinedOutputs> types;
  for (const norm::SegmentOutput output : outputs_) {
    types.push_back({norm::TypeOf(spec, output), ShapeOf(output, x.shape)});
  }
  return types;
}

namespace {

// The bytes of the tiles of a mixed-run x that threads copy (kernels/cpu/mixed_runs.cc), if
// rows are so long that a tile exceeds the threads' usual memory. The tiles of one sample have at
// most the sample's bytes.
std::int64_t TilesBytes(const norm::NormSpec& spec, const Geometry& geometry, norm::DType dtype) {
  constexpr std::int64_t kTile = std::int64_t{256} << 10;
  constexpr std::int64_t kLine = 64;
  const auto element = static_cast<std::int64_t>(norm::SizeOf(dtype));
  const std::int64_t row = spec.channels * element;
  if (row * std::min(geometry.spatial, kLine / element) <= kTile) return 0;
  return row * geometry.spatial * std::min<std::int64_t>(geometry.samples, 1);
}

}  // namespace

// Factors, offsets and gates of the samples that are computed together (kernels/cpu/staged.cc).
std::int64_t NormOperation::WorkspaceBytes(const Geometry& geometry, norm::DType dtype) const {
  if (spec_.layout == norm::Layout::kMixedRuns) return TilesBytes(spec_, geometry, dtype);
  constexpr std::int64_t kTogether = std::int64_t{256} << 10;
  const bool modulated = spec_.style != norm::Style::kNone || spec_.scale || spec_.shift;
  const bool wide = dtype == norm::DType::kFloat64 || spec_.style == norm::Style::kMix ||
                    spec_.style == norm::Style::kTensor;
  const std::int64_t element = (wide ? 8 : 4) * ((modulated ? 2 : 0) + (spec_.gate ? 1 : 0));
  const std::int64_t most = std::max<std::int64_t>(kTogether / spec_.channels, 1);
  return element * spec_.channels * std::min(geometry.samples, most);
}

// For an x that Divide accepts: there are no more rows, or scales, than elements.
Shape NormOperation::ShapeOf(norm::SegmentOutput output, const Shape& x) const {
  if (IsLikeX(output)) return x;
  Dims dims = RowDims(x);
  if (output == norm::SegmentOutput::kScale) dims.back() *= ScalesOfRow();
  return Shape::Create(dims).value_or(Shape());
}

KernelProgram NormOperation::MakeProgram(const BoundParameters& parameters) const {
  NormProgram program;
  for (const norm::DType dtype : kDTypes) {
    norm::NormSpec& spec = program.specs[static_cast<std::size_t>(dtype) - 1];
    spec = spec_;
    spec.dtype = dtype;
    if (!takes_machine_epsilon_) continue;
    spec.eps = dtype == norm::DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon();
  }
  program.params = {FindParameter(parameters, "weight"),
                    FindParameter(parameters, "bias"),
                    FindParameter(parameters, "running_mean"),
                    FindParameter(parameters, "running_var"),
                    {}};
  return program;
}

}  // namespace normd

#include "server/model/operations/norm_operation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr absl::string_view kNormNames[] = {"weight", "bias", "running_mean", "running_var"};
constexpr norm::DType kDTypes[] = {norm::DType::kFloat32, norm::DType::kFloat64,
                                   norm::DType::kFloat16, norm::DType::kBFloat16};

Signature SignatureOf(const norm::NormSpec& spec, const ShapePattern& shape) {
  Signature signature;
  signature.inputs.push_back({"x", shape});
  if (spec.residual) signature.inputs.push_back({"residual", shape});
  signature.outputs.push_back({"y", shape});
  if (spec.residual_out) signature.outputs.push_back({"residual_out", shape});
  return signature;
}

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

}  // namespace

absl::Span<const absl::string_view> TorchNormNames() { return kNormNames; }

void SetCommon(const v1::ModelConfig& config, norm::NormSpec& spec) {
  spec.layout = config.layout() == v1::CHANNELS_LAST ? norm::Layout::kChannelsLast
                                                     : norm::Layout::kChannelsFirst;
  spec.activation = ToKernel(config.activation());
  if (config.has_leaky_slope()) spec.leaky_slope = config.leaky_slope();
}

CutRule CutRuleOf(const norm::NormSpec& spec) {
  // The rows of a channels-last sample are interleaved; several tensors are cut between samples.
  if (spec.layout == norm::Layout::kChannelsLast || spec.residual) return {};
  return {CutRule::At::kRow, spec.groups, spec.channels / spec.groups};
}

NormOperation::NormOperation(const v1::ModelConfig& config, const norm::NormSpec& spec,
                             const NormParameters& parameters, Shape parameter_shape,
                             const ShapePattern& shape)
    : spec_(spec), signature_(SignatureOf(spec, shape)) {
  SetCommon(config, spec_);
  std::vector<ExpectedParameter>& expected = parameters_.expected;
  if (parameters.weight) expected.push_back({"weight", !parameters.bias, parameter_shape});
  if (parameters.bias) expected.push_back({"bias", false, parameter_shape});
  if (parameters.running) {
    expected.push_back({"running_mean", true, parameter_shape});
    expected.push_back({"running_var", true, parameter_shape});
  }
  parameters_.torch_names = kNormNames;
  parameters_.norm_shape = std::move(parameter_shape);
}

std::string NormOperation::DTypesText() const { return "FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"; }

absl::StatusOr<Geometry> NormOperation::Check(absl::Span<const TensorType> inputs) const {
  const auto& [dtype, shape] = inputs.front();
  Geometry geometry;
  absl::Status status = Divide(shape, geometry);
  // The product fits: there are no more groups than channels, and Shape bounds all elements.
  geometry.rows = geometry.samples * spec_.groups;
  const auto tensors = std::max(signature_.inputs.size(), signature_.outputs.size());
  const auto element_bytes = static_cast<std::int64_t>(norm::SizeOf(dtype));
  if (status.ok() &&
      !CheckedMultiply(shape.elements(), element_bytes * static_cast<std::int64_t>(tensors))) {
    status = absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " of ",
                                                     norm::Name(dtype), " has over 2^63 bytes"));
  }
  if (!status.ok() && inputs.size() > 1) {
    status = absl::Status(status.code(), absl::StrCat("input \"x\": ", status.message()));
  }
  if (status.ok()) status = CheckFurther(inputs.front(), inputs.subspan(1));
  if (!status.ok()) return status;
  const TensorSize size = {shape.elements() * element_bytes, dtype};
  geometry.inputs.assign(signature_.inputs.size(), size);
  geometry.outputs.assign(signature_.outputs.size(), size);
  return geometry;
}

// The inputs after x, which is right.
absl::Status NormOperation::CheckFurther(const TensorType& x,
                                         absl::Span<const TensorType> inputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto wrong = [&](absl::string_view field, absl::string_view got, absl::string_view want) {
      return absl::InvalidArgumentError(absl::StrCat("input \"", signature_.inputs[i + 1].name,
                                                     "\": ", field, ": ", got, ", wanted ", want,
                                                     " as of \"x\""));
    };
    const TensorType& input = inputs[i];
    if (input.dtype != x.dtype) {
      return wrong("dtype", norm::Name(input.dtype), norm::Name(x.dtype));
    }
    if (!(input.shape == x.shape)) {
      return wrong("shape", input.shape.ToString(), x.shape.ToString());
    }
  }
  return absl::OkStatus();
}

absl::InlinedVector<TensorType, kInlinedOutputs> NormOperation::Outputs(
    absl::Span<const TensorType> inputs) const {
  return absl::InlinedVector<TensorType, kInlinedOutputs>(signature_.outputs.size(),
                                                          inputs.front());
}

KernelProgram NormOperation::MakeProgram(const BoundParameters& parameters) const {
  NormProgram program;
  for (const norm::DType dtype : kDTypes) {
    norm::NormSpec& spec = program.specs[static_cast<std::size_t>(dtype) - 1];
    spec = spec_;
    spec.dtype = dtype;
    spec.eps = EpsFor(dtype);
  }
  program.params = {FindParameter(parameters, "weight"), FindParameter(parameters, "bias"),
                    FindParameter(parameters, "running_mean"),
                    FindParameter(parameters, "running_var")};
  return program;
}

}  // namespace normd

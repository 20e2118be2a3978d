#include "server/model/operations/norm_operation.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

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

}  // namespace

absl::Span<const absl::string_view> TorchNormNames() { return kNormNames; }

void SetCommon(const v1::ModelConfig& config, norm::NormSpec& spec) {
  spec.layout = config.layout() == v1::CHANNELS_LAST ? norm::Layout::kChannelsLast
                                                     : norm::Layout::kChannelsFirst;
  spec.activation = ToKernel(config.activation());
  if (config.has_leaky_slope()) spec.leaky_slope = config.leaky_slope();
}

CutRule CutRuleOf(const norm::NormSpec& spec) {
  // The rows of a channels-last sample are interleaved.
  if (spec.layout == norm::Layout::kChannelsLast) return {};
  return {CutRule::At::kRow, spec.groups, spec.channels / spec.groups};
}

NormOperation::NormOperation(const v1::ModelConfig& config, const norm::NormSpec& spec,
                             const NormParameters& parameters, Shape shape)
    : spec_(spec) {
  SetCommon(config, spec_);
  std::vector<ExpectedParameter>& expected = parameters_.expected;
  if (parameters.weight) expected.push_back({"weight", !parameters.bias, shape});
  if (parameters.bias) expected.push_back({"bias", false, shape});
  if (parameters.running) {
    expected.push_back({"running_mean", true, shape});
    expected.push_back({"running_var", true, shape});
  }
  parameters_.torch_names = kNormNames;
  parameters_.norm_shape = std::move(shape);
}

absl::Span<const absl::string_view> NormOperation::input_names() const {
  static constexpr absl::string_view kNames[] = {"x"};
  return kNames;
}

absl::Span<const absl::string_view> NormOperation::output_names() const {
  static constexpr absl::string_view kNames[] = {"y"};
  return kNames;
}

std::string NormOperation::DTypesText() const { return "FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"; }

absl::StatusOr<Geometry> NormOperation::Check(absl::Span<const TensorType> inputs) const {
  const auto& [dtype, shape] = inputs.front();
  Geometry geometry;
  if (absl::Status status = Divide(shape, geometry); !status.ok()) return status;
  // The product fits: there are no more groups than channels, and Shape bounds all elements.
  geometry.rows = geometry.samples * spec_.groups;
  const std::optional<std::int64_t> bytes =
      CheckedMultiply(shape.elements(), static_cast<std::int64_t>(norm::SizeOf(dtype)));
  if (!bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " of ",
                                                   norm::Name(dtype), " has over 2^63 bytes"));
  }
  geometry.inputs.push_back({*bytes, dtype});
  geometry.outputs.push_back({*bytes, dtype});
  return geometry;
}

absl::InlinedVector<TensorType, kInlinedOutputs> NormOperation::Outputs(
    absl::Span<const TensorType> inputs) const {
  return {inputs.front()};
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

#include "operations/makers.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/linear_norm.h"
#include "operations/field_checks.h"
#include "operations/kernel_program.h"
#include "operations/norm_operation.h"

namespace normd {
namespace {

// The most elements of one weight: 4 TiB of float32.
constexpr std::int64_t kMaxWeights = std::int64_t{1} << 40;

// The parameters of the product and of the norm after it.
constexpr absl::string_view kTorchNames[] = {"weight",      "bias",          "running_mean",
                                             "running_var", "linear.weight", "linear.bias"};

absl::Status CheckFeatures(absl::string_view field, std::int64_t features) {
  if (features >= 1 && features <= kMaxChannels) return absl::OkStatus();
  return InvalidField(absl::StrCat("linear_norm.", field), absl::StrCat(features),
                      absl::StrCat("1 to ", kMaxChannels));
}

absl::Status CheckMessage(const v1::LinearNorm& message) {
  for (const absl::Status& status : {CheckFeatures("in_features", message.in_features()),
                                     CheckFeatures("out_features", message.out_features())}) {
    if (!status.ok()) return status;
  }
  const std::optional<std::int64_t> weights =
      CheckedMultiply(message.in_features(), message.out_features());
  if (!weights || *weights > kMaxWeights) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear_norm: in_features ", message.in_features(), " times out_features ",
                     message.out_features(), ", wanted at most ", kMaxWeights, " weights"));
  }
  if (absl::StatusOr<norm::Precision> precision = ToPrecision(message.precision());
      !precision.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("linear_norm.", precision.status().message()));
  }
  return CheckEps("linear_norm", message);
}

// Checks `shape` of `input`, whose last dimension counts features.
absl::Status CheckLastDimension(const TensorSignature& input, const Shape& shape) {
  if (shape.rank() >= 1 && shape.dim(shape.rank() - 1) == input.shape.back()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("input \"", input.name,
                                                 "\": shape: ", shape.ToString(), ", wanted ",
                                                 PatternText(input.shape)));
}

class LinearNorm final : public Operation {
 public:
  explicit LinearNorm(const v1::ModelConfig& config);

  const Signature& signature() const override { return signature_; }
  const ParameterRules& parameters() const override { return parameters_; }
  bool has_channels() const override { return false; }
  bool TakesDType(norm::DType dtype) const override { return norm::IsLinearNormDType(dtype); }
  std::string DTypesText() const override { return "FLOAT32, FLOAT16 or BFLOAT16"; }
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const override;
  absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const override;
  CutRule cut() const override { return {}; }
  // Its cost is not proportional to its bytes.
  bool runs_inline() const override { return false; }
  absl::StatusOr<RequestOptions> CheckOptions(const AskedOptions& asked,
                                              absl::string_view model) const override;
  KernelProgram MakeProgram(const BoundParameters& parameters) const override;

 private:
  // [*, out_features] for x [*, in_features]. InvalidArgument when it has over 2^63 elements.
  absl::StatusOr<Shape> OutputShape(const Shape& x) const;
  absl::Status CheckY(const TensorType& x, const TensorType& y, const Shape& out) const;

  norm::LinearNormSpec spec_;
  ParameterRules parameters_;
  Signature signature_;
};

// The dimensions are checked: their products fit.
LinearNorm::LinearNorm(const v1::ModelConfig& config) {
  const v1::LinearNorm& message = config.linear_norm();
  norm::NormSpec common;
  SetCommon(config, common);
  spec_.in_features = message.in_features();
  spec_.out_features = message.out_features();
  spec_.eps = EpsOf(message);
  spec_.precision = ToPrecision(message.precision()).value_or(norm::Precision::kFloat32);
  spec_.epilogue = {message.epilogue().add(), message.epilogue().multiply(), common.activation,
                    static_cast<float>(common.leaky_slope)};
  const std::int64_t out = message.out_features();
  parameters_.expected.push_back(
      {"linear.weight", true, Shape::Create({out, message.in_features()}).value_or(Shape())});
  parameters_.norm_shape = Shape::Create({out}).value_or(Shape());
  if (!message.has_bias() || message.bias()) {
    parameters_.expected.push_back({"linear.bias", true, parameters_.norm_shape});
  }
  parameters_.torch_names = kTorchNames;
  parameters_.norm_has_parameters = false;
  signature_.inputs.push_back({"x", {kAnyDimensions, message.in_features()}});
  if (spec_.epilogue.needs_y()) signature_.inputs.push_back({"y", {kAnyDimensions, out}});
  signature_.outputs.push_back({"out", {kAnyDimensions, out}});
}

absl::StatusOr<Shape> LinearNorm::OutputShape(const Shape& x) const {
  absl::InlinedVector<std::int64_t, 6> dims(x.dims().begin(), x.dims().end());
  dims.back() = spec_.out_features;
  return Shape::Create(dims);
}

absl::Status LinearNorm::CheckY(const TensorType& x, const TensorType& y, const Shape& out) const {
  if (y.dtype != x.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("input \"y\": dtype: ", norm::Name(y.dtype),
                                                   ", wanted ", norm::Name(x.dtype),
                                                   " as of \"x\""));
  }
  if (y.shape == out) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("input \"y\": shape: ", y.shape.ToString(),
                                                 ", wanted ", out.ToString(), " for \"x\" of ",
                                                 x.shape.ToString()));
}

absl::StatusOr<Geometry> LinearNorm::Check(absl::Span<const TensorType> inputs) const {
  const TensorType& x = inputs.front();
  absl::Status status = CheckLastDimension(signature_.inputs.front(), x.shape);
  if (!status.ok()) return status;
  const absl::StatusOr<Shape> out = OutputShape(x.shape);
  if (!out.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("output: ", out.status().message()));
  }
  if (inputs.size() > 1) status = CheckY(x, inputs[1], *out);
  if (!status.ok()) return status;
  Geometry geometry;
  geometry.samples = geometry.rows = x.shape.Product(0, x.shape.rank() - 1);
  const auto size = static_cast<std::int64_t>(norm::SizeOf(x.dtype));
  // At most 2^33 features in all, so that this product fits.
  const std::int64_t sample_bytes = size * (spec_.in_features + 2 * spec_.out_features);
  if (!CheckedMultiply(geometry.samples, sample_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("input \"x\": shape: ", x.shape.ToString(),
                                                   " of ", norm::Name(x.dtype),
                                                   " has over 2^63 bytes"));
  }
  const TensorSize output = {geometry.samples * spec_.out_features * size, x.dtype};
  geometry.inputs.push_back({geometry.samples * spec_.in_features * size, x.dtype});
  if (inputs.size() > 1) geometry.inputs.push_back(output);
  geometry.outputs.push_back(output);
  return geometry;
}

absl::InlinedVector<TensorType, kInlinedOutputs> LinearNorm::Outputs(
    absl::Span<const TensorType> inputs) const {
  const TensorType& x = inputs.front();
  return {TensorType{x.dtype, OutputShape(x.shape).value_or(Shape())}};  // Check has made it once.
}

absl::StatusOr<RequestOptions> LinearNorm::CheckOptions(const AskedOptions& asked,
                                                        absl::string_view /*model*/) const {
  if (asked.precision == v1::PRECISION_UNSPECIFIED) return RequestOptions{spec_.precision};
  const absl::StatusOr<norm::Precision> precision = ToPrecision(asked.precision);
  if (!precision.ok()) return precision.status();
  return RequestOptions{*precision};
}

KernelProgram LinearNorm::MakeProgram(const BoundParameters& parameters) const {
  return LinearNormProgram{
      spec_,
      {FindParameter(parameters, "linear.weight"), FindParameter(parameters, "linear.bias")}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeLinearNorm(const v1::ModelConfig& config) {
  if (absl::Status status = CheckMessage(config.linear_norm()); !status.ok()) return status;
  return std::make_unique<LinearNorm>(config);
}

}  // namespace normd

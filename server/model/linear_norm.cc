#include "server/model/linear_norm.h"

#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/model/config.h"

namespace normd {
namespace {

absl::Status CheckFeatures(absl::string_view field, std::int64_t features) {
  if (features >= 1 && features <= kMaxChannels) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("linear_norm.", field, ": ", features, ", wanted 1 to ", kMaxChannels));
}

// Of the input `name`, whose last dimension counts features.
absl::Status CheckLastDimension(absl::string_view name, const Shape& shape, std::int64_t features) {
  if (shape.rank() >= 1 && shape.dim(shape.rank() - 1) == features) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("input \"", name, "\": shape: ", shape.ToString(),
                                                 ", wanted [*, ", features, "]"));
}

}  // namespace

absl::Status CheckLinearNorm(const v1::LinearNorm& operation) {
  for (const absl::Status& status : {CheckFeatures("in_features", operation.in_features()),
                                     CheckFeatures("out_features", operation.out_features())}) {
    if (!status.ok()) return status;
  }
  const std::optional<std::int64_t> weights =
      CheckedMultiply(operation.in_features(), operation.out_features());
  if (!weights || *weights > kMaxLinearWeights) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear_norm: in_features ", operation.in_features(), " times out_features ",
                     operation.out_features(), ", wanted at most ", kMaxLinearWeights, " weights"));
  }
  if (absl::StatusOr<norm::Precision> precision = ToPrecision(operation.precision());
      !precision.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("linear_norm.", precision.status().message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<norm::Precision> ToPrecision(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_UNSPECIFIED:
    case v1::PRECISION_FLOAT32: return norm::Precision::kFloat32;
    case v1::PRECISION_TF32: return norm::Precision::kTf32;
    case v1::PRECISION_BFLOAT16: return norm::Precision::kBFloat16;
    case v1::PRECISION_FLOAT32_STRICT: return norm::Precision::kFloat32Strict;
    default: break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("precision: ", static_cast<int>(precision),
                   ", wanted PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BFLOAT16 or "
                   "PRECISION_FLOAT32_STRICT"));
}

norm::LinearNormSpec MakeLinearSpec(const v1::ModelConfig& config) {
  const v1::LinearNorm& operation = config.linear_norm();
  const norm::NormSpec common = MakeSpec(config, norm::DType::kFloat32);
  norm::LinearNormSpec spec;
  spec.in_features = operation.in_features();
  spec.out_features = operation.out_features();
  spec.eps = common.eps;
  if (const auto precision = ToPrecision(operation.precision()); precision.ok()) {
    spec.precision = *precision;
  }
  spec.epilogue = {operation.epilogue().add(), operation.epilogue().multiply(), common.activation,
                   static_cast<float>(common.leaky_slope)};
  return spec;
}

absl::StatusOr<Shape> LinearOutputShape(const norm::LinearNormSpec& spec, const Shape& x) {
  absl::InlinedVector<std::int64_t, 6> dims(x.dims().begin(), x.dims().end());
  dims.back() = spec.out_features;
  return Shape::Create(dims);
}

absl::StatusOr<Geometry> FitLinear(const norm::LinearNormSpec& spec,
                                   absl::Span<const TensorType> inputs) {
  const TensorType& x = inputs.front();
  if (absl::Status status = CheckLastDimension("x", x.shape, spec.in_features); !status.ok()) {
    return status;
  }
  const absl::StatusOr<Shape> out = LinearOutputShape(spec, x.shape);
  if (!out.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("output: ", out.status().message()));
  }
  if (inputs.size() > 1) {
    const TensorType& y = inputs[1];
    if (y.dtype != x.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("input \"y\": dtype: ", norm::Name(y.dtype),
                                                     ", wanted ", norm::Name(x.dtype),
                                                     " as of \"x\""));
    }
    if (!(y.shape == *out)) {
      return absl::InvalidArgumentError(absl::StrCat("input \"y\": shape: ", y.shape.ToString(),
                                                     ", wanted ", out->ToString(), " for \"x\" of ",
                                                     x.shape.ToString()));
    }
  }
  Geometry geometry;
  geometry.samples = geometry.rows = x.shape.Product(0, x.shape.rank() - 1);
  const auto size = static_cast<std::int64_t>(norm::SizeOf(x.dtype));
  // At most 2^33 features in all, so that this product fits.
  const std::int64_t sample_bytes = size * (spec.in_features + 2 * spec.out_features);
  if (!CheckedMultiply(geometry.samples, sample_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", x.shape.ToString(), " of ",
                                                   norm::Name(x.dtype), " has over 2^63 bytes"));
  }
  geometry.bytes = geometry.samples * spec.out_features * size;
  geometry.input_bytes[0] = geometry.samples * spec.in_features * size;
  if (inputs.size() > 1) geometry.input_bytes[1] = geometry.bytes;
  return geometry;
}

}  // namespace normd

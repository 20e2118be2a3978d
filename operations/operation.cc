#include "operations/operation.h"

#include "absl/strings/str_cat.h"
#include "kernels/linear_norm.h"

namespace normd {

norm::ParamVector FindParameter(const BoundParameters& parameters, absl::string_view name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? norm::ParamVector() : found->second;
}

norm::DType DTypeOf(const TensorSignature& tensor, norm::DType request) {
  if (request == norm::DType::kFloat64 && tensor.dtype_of_float64) return *tensor.dtype_of_float64;
  return tensor.dtype.value_or(request);
}

absl::StatusOr<RequestOptions> Operation::CheckOptions(const AskedOptions& asked,
                                                       absl::string_view model) const {
  if (asked.precision == v1::PRECISION_UNSPECIFIED) return RequestOptions();
  const absl::StatusOr<norm::Precision> precision = ToPrecision(asked.precision);
  if (!precision.ok()) return precision.status();
  return absl::InvalidArgumentError(absl::StrCat("precision: ", v1::Precision_Name(asked.precision),
                                                 ", wanted none: model \"", model,
                                                 "\" has no matrix product"));
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

}  // namespace normd

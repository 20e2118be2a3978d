// Norms over the trailing dimensions of tensors [*, normalized shape].

#ifndef NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_
#define NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_

#include "absl/status/status.h"
#include "operations/field_checks.h"
#include "operations/norm_operation.h"

namespace normd {

// Each parameter has the normalized shape.
class NormalizedShapeNorm : public NormOperation {
 public:
  // `normalized` is checked, and `norm` has as many channels as it has elements.
  NormalizedShapeNorm(const v1::ModelConfig& config, const NormCase& norm,
                      absl::Span<const std::int64_t> normalized);

  bool has_channels() const final { return false; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const final;
  Dims RowDims(const Shape& x) const final;

  const Shape normalized_;
};

// The product of checked dimensions.
std::int64_t ElementsOf(absl::Span<const std::int64_t> normalized);

// For operations whose message has LayerNorm's fields. `operation` is the name of the config's
// field.
template <typename Message>
absl::Status CheckLayerNorm(absl::string_view operation, const Message& message) {
  absl::Status status = CheckNormalizedShape(operation, message.normalized_shape());
  return status.ok() ? CheckEps(operation, message) : status;
}
// `message` has passed CheckLayerNorm.
template <typename Message>
NormCase LayerNormCaseOf(const Message& message) {
  NormCase norm;
  norm.spec = norm::LayerNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.parameters = {IsAffine(message), IsAffine(message), false};
  return norm;
}

// For operations whose message has RmsNorm's fields. `operation` is the name of the config's field.
template <typename Message>
absl::Status CheckRmsNorm(absl::string_view operation, const Message& message) {
  absl::Status status = CheckNormalizedShape(operation, message.normalized_shape());
  if (status.ok()) status = CheckEps(operation, message);
  if (status.ok()) {
    status = CheckFinite(absl::StrCat(operation, ".weight_offset"), message.weight_offset());
  }
  return status;
}
// `message` has passed CheckRmsNorm. Without eps it is the machine epsilon of the type in which
// PyTorch computes the statistics.
template <typename Message>
NormCase RmsNormCaseOf(const Message& message) {
  NormCase norm;
  norm.spec = norm::RmsNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  norm.spec.eps = EpsOf(message);
  norm.spec.weight_offset = message.weight_offset();
  norm.parameters.weight = IsAffine(message);
  norm.takes_machine_epsilon = !message.has_eps();
  return norm;
}

}  // namespace normd

#endif  // NORMD_OPERATIONS_NORMALIZED_SHAPE_NORM_H_

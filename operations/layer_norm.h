// LayerNorm: the trailing dimensions, or those that `axes` names, are a row.

#ifndef NORMD_OPERATIONS_LAYER_NORM_H_
#define NORMD_OPERATIONS_LAYER_NORM_H_

#include "absl/status/status.h"
#include "operations/field_checks.h"
#include "operations/normalized_shape_norm.h"

namespace normd {

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

}  // namespace normd

#endif  // NORMD_OPERATIONS_LAYER_NORM_H_

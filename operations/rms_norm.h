// RMSNorm: the trailing dimensions, or those that `axes` names, are a row, divided by its root mean
// square.

#ifndef NORMD_OPERATIONS_RMS_NORM_H_
#define NORMD_OPERATIONS_RMS_NORM_H_

#include "absl/status/status.h"
#include "operations/field_checks.h"
#include "operations/normalized_shape_norm.h"

namespace normd {

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

#endif  // NORMD_OPERATIONS_RMS_NORM_H_

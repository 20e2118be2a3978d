// RMSNorm: the trailing dimensions are a row, divided by its root mean square.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/field_checks.h"
#include "server/model/operation.h"
#include "server/model/operations/normalized_shape_norm.h"

namespace normd {

// InvalidArgument names the first field of `rms_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config);

// For operations whose message has RmsNorm's fields. `operation` is the name of the config's field.
template <typename Message>
absl::Status CheckRmsNorm(absl::string_view operation, const Message& message) {
  absl::Status status = CheckNormalizedShape(operation, message.normalized_shape());
  return status.ok() ? CheckEps(operation, message) : status;
}
// `message` has passed CheckRmsNorm.
template <typename Message>
norm::NormSpec RmsNormSpecOf(const Message& message) {
  norm::NormSpec spec =
      norm::RmsNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  spec.eps = EpsOf(message);
  return spec;
}

class RmsNorm final : public NormalizedShapeNorm {
 public:
  // `spec` is RmsNormSpecOf(message), and what the operation adds to it.
  template <typename Message>
  RmsNorm(const v1::ModelConfig& config, const Message& message, const norm::NormSpec& spec)
      : NormalizedShapeNorm(config, spec, {IsAffine(message), false, false},
                            message.normalized_shape()),
        has_eps_(message.has_eps()) {}

 private:
  // When absent, the machine epsilon of the type in which PyTorch computes the statistics.
  double EpsFor(norm::DType dtype) const override;

  const bool has_eps_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_

#include "server/model/operations/layer_norm.h"

#include "server/model/field_checks.h"
#include "server/model/operations/normalized_shape_norm.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeLayerNorm(const v1::ModelConfig& config) {
  const v1::LayerNorm& message = config.layer_norm();
  absl::Status status = CheckNormalizedShape("layer_norm", message.normalized_shape());
  if (status.ok()) status = CheckEps("layer_norm", message);
  if (!status.ok()) return status;
  norm::NormSpec spec =
      norm::LayerNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  spec.eps = EpsOf(message);
  const NormParameters parameters = {IsAffine(message), IsAffine(message), false};
  return std::make_unique<NormalizedShapeNorm>(config, spec, parameters,
                                               message.normalized_shape());
}

}  // namespace normd

#include "operations/layer_norm.h"

#include "operations/axes_norm.h"
#include "operations/makers.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeLayerNorm(const v1::ModelConfig& config) {
  const v1::LayerNorm& message = config.layer_norm();
  if (absl::Status s = CheckLayerNorm("layer_norm", message); !s.ok()) return s;
  return MakeNormOverAxes("layer_norm", config, message, LayerNormCaseOf(message));
}

}  // namespace normd

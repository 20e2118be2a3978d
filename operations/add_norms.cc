#include "operations/makers.h"

#include "operations/normalized_shape_norm.h"

namespace normd {
namespace {

template <typename Message>
std::unique_ptr<Operation> MakeAddNorm(const v1::ModelConfig& config, const Message& message,
                                       NormCase norm) {
  norm.spec.residual = true;
  norm.spec.residual_out = true;
  return std::make_unique<NormalizedShapeNorm>(config, norm, message.normalized_shape());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeAddRmsNorm(const v1::ModelConfig& config) {
  const v1::AddRmsNorm& message = config.add_rms_norm();
  if (absl::Status s = CheckRmsNorm("add_rms_norm", message); !s.ok()) return s;
  return MakeAddNorm(config, message, RmsNormCaseOf(message));
}

absl::StatusOr<std::unique_ptr<Operation>> MakeAddLayerNorm(const v1::ModelConfig& config) {
  const v1::AddLayerNorm& message = config.add_layer_norm();
  if (absl::Status s = CheckLayerNorm("add_layer_norm", message); !s.ok()) return s;
  return MakeAddNorm(config, message, LayerNormCaseOf(message));
}

}  // namespace normd

#include "server/model/operations/add_rms_norm.h"

#include "server/model/operations/rms_norm.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeAddRmsNorm(const v1::ModelConfig& config) {
  const v1::AddRmsNorm& message = config.add_rms_norm();
  if (absl::Status s = CheckRmsNorm("add_rms_norm", message); !s.ok()) return s;
  norm::NormSpec spec = RmsNormSpecOf(message);
  spec.residual = true;
  spec.residual_out = true;
  return std::make_unique<RmsNorm>(config, message, spec);
}

}  // namespace normd

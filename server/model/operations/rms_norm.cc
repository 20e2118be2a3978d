#include "server/model/operations/rms_norm.h"

#include <limits>

namespace normd {

double RmsNorm::EpsFor(norm::DType dtype) const {
  if (has_eps_) return spec().eps;
  return dtype == norm::DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                        : std::numeric_limits<float>::epsilon();
}

absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config) {
  const v1::RmsNorm& message = config.rms_norm();
  if (absl::Status s = CheckRmsNorm("rms_norm", message); !s.ok()) return s;
  return std::make_unique<RmsNorm>(config, message, RmsNormSpecOf(message));
}

}  // namespace normd

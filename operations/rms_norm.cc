#include "operations/rms_norm.h"

#include "operations/axes_norm.h"
#include "operations/makers.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config) {
  const v1::RmsNorm& message = config.rms_norm();
  if (absl::Status s = CheckRmsNorm("rms_norm", message); !s.ok()) return s;
  return MakeNormOverAxes("rms_norm", config, message, RmsNormCaseOf(message));
}

}  // namespace normd

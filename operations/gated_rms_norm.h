// RMSNorm with a gate before or after it.

#ifndef NORMD_OPERATIONS_GATED_RMS_NORM_H_
#define NORMD_OPERATIONS_GATED_RMS_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `gated_rms_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeGatedRmsNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_GATED_RMS_NORM_H_

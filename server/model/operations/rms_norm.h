// RMSNorm: the trailing dimensions are a row, divided by its root mean square.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operation.h"

namespace normd {

// InvalidArgument names the first field of `rms_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_RMS_NORM_H_

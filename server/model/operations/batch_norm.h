// BatchNorm inference: each channel has statistics from the parameters.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_BATCH_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_BATCH_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operation.h"

namespace normd {

// InvalidArgument names the first field of `batch_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeBatchNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_BATCH_NORM_H_

// BatchNorm inference: each channel has statistics from the parameters.

#ifndef NORMD_OPERATIONS_BATCH_NORM_H_
#define NORMD_OPERATIONS_BATCH_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `batch_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeBatchNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_BATCH_NORM_H_

// InstanceNorm: each channel of a sample is a row.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_INSTANCE_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_INSTANCE_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operation.h"

namespace normd {

// InvalidArgument names the first field of `instance_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeInstanceNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_INSTANCE_NORM_H_

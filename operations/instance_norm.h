// InstanceNorm: each channel of a sample is a row.

#ifndef NORMD_OPERATIONS_INSTANCE_NORM_H_
#define NORMD_OPERATIONS_INSTANCE_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `instance_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeInstanceNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_INSTANCE_NORM_H_

// The fused layer: a matrix product, the norm of its rows, an epilogue with a second input.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_LINEAR_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_LINEAR_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operation.h"

namespace normd {

// InvalidArgument names the first field of `linear_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeLinearNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_LINEAR_NORM_H_

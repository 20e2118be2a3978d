// The fused layer: a matrix product, the norm of its rows, an epilogue with a second input.

#ifndef NORMD_OPERATIONS_LINEAR_NORM_H_
#define NORMD_OPERATIONS_LINEAR_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `linear_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeLinearNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_LINEAR_NORM_H_

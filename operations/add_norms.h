// Norms of x + residual, which is an output too.

#ifndef NORMD_OPERATIONS_ADD_NORMS_H_
#define NORMD_OPERATIONS_ADD_NORMS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `add_rms_norm` or `add_layer_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeAddRmsNorm(const v1::ModelConfig& config);
absl::StatusOr<std::unique_ptr<Operation>> MakeAddLayerNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_ADD_NORMS_H_

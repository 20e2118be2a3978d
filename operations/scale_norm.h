// Rows divided by their Euclidean norm, times one number.

#ifndef NORMD_OPERATIONS_SCALE_NORM_H_
#define NORMD_OPERATIONS_SCALE_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `scale_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeScaleNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_SCALE_NORM_H_

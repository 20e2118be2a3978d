// Rows divided by one of their norms.

#ifndef NORMD_OPERATIONS_LP_NORMALIZE_H_
#define NORMD_OPERATIONS_LP_NORMALIZE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of `lp_normalize` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeLpNormalize(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_LP_NORMALIZE_H_

// The fused layer (kernels/linear_norm.h) in float64.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_LINEAR_NORM_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_LINEAR_NORM_H_

#include <memory>

#include "client/verify/reference_operation.h"

namespace normd::client {

// InvalidArgument when its weights are too many.
absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceLinearNorm(
    const v1::ModelConfig& config);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_LINEAR_NORM_H_

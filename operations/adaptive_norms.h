// Norms whose scale and shift are each sample's own.

#ifndef NORMD_OPERATIONS_ADAPTIVE_NORMS_H_
#define NORMD_OPERATIONS_ADAPTIVE_NORMS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of the message that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveLayerNorm(const v1::ModelConfig& config);
absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveGroupNorm(const v1::ModelConfig& config);
absl::StatusOr<std::unique_ptr<Operation>> MakeAdaptiveInstanceNorm(const v1::ModelConfig& config);
absl::StatusOr<std::unique_ptr<Operation>> MakeConditionalInstanceNorm(
    const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_ADAPTIVE_NORMS_H_

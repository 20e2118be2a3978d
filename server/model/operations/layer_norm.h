// LayerNorm: the trailing dimensions are a row.

#ifndef NORMD_SERVER_MODEL_OPERATIONS_LAYER_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_LAYER_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/operation.h"

namespace normd {

// InvalidArgument names the first field of `layer_norm` that is wrong.
absl::StatusOr<std::unique_ptr<Operation>> MakeLayerNorm(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_LAYER_NORM_H_

// Shapes of inputs that suit a model, for a user who names none.

#ifndef NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_
#define NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"
#include "normd/v1/model_config.pb.h"

namespace normd::client {

// One for each of the model's inputs, in its order; of float32. One image of 56 x 56 where the
// model has channels, in its layout; eight rows where it has a normalized shape or features.
// FailedPrecondition for an operation that this program does not know; InvalidArgument as
// Shape::Create.
absl::StatusOr<std::vector<TensorSpec>> DefaultInputs(const v1::ModelConfig& config);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

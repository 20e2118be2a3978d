// Shapes of inputs that suit a model, for a user who names none.

#ifndef NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_
#define NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// One for each of the inputs that the server tells of, in its order; of float32. One image of
// 56 x 56 where a sample may have any dimensions; eight rows otherwise. FailedPrecondition when the
// server is older than ModelInfo.inputs or newer than what this program knows of them;
// InvalidArgument as Shape::Create.
absl::StatusOr<std::vector<TensorSpec>> DefaultInputs(const v1::ModelInfo& model);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

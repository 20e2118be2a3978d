// Input shapes that suit a model, for a user who names none.

#ifndef NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_
#define NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// One float32 input for each that the server reports, in its order: an image of 56 x 56 if a sample
// may have any dimensions, else eight rows. FailedPrecondition if the server is older than
// ModelInfo.inputs, or describes inputs in a way that this program does not know; InvalidArgument
// as Shape::Create.
absl::StatusOr<std::vector<TensorSpec>> DefaultInputs(const v1::ModelInfo& model);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_DEFAULT_INPUTS_H_

// The outputs of a model for inputs of these shapes, computed from GetModel's answer.

#ifndef NORMD_CLIENT_OUTPUT_SPECS_H_
#define NORMD_CLIENT_OUTPUT_SPECS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// The outputs `wanted` in the model's order or, if there are none, the default ones. Inputs are
// matched by name; a model's only input needs none.
//
// InvalidArgument for inputs that the model does not take, or not in these shapes, and for an
// output that it does not have; FailedPrecondition if the server is older than these descriptions,
// or describes an output in a way that this program does not know.
absl::StatusOr<std::vector<TensorSpec>> OutputSpecs(const v1::ModelInfo& model,
                                                    absl::Span<const TensorSpec> inputs,
                                                    absl::Span<const std::string> wanted);

}  // namespace normd::client

#endif  // NORMD_CLIENT_OUTPUT_SPECS_H_

// The operations that are cases of the kernels' norm (kernels/norm.h), in float64.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_NORM_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_NORM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/verify/reference_operation.h"

namespace normd::client {

// What an operation's own message says.
struct ReferenceNormCase {
  norm::NormSpec spec;
  bool takes_machine_epsilon = false;  // In place of spec.eps, that of the request's type.
  // An operation that takes both accepts a file with one of them.
  bool has_weight = false;
  bool has_bias = false;
  // For operations over trailing dimensions, whose elements are then the spec's channels.
  std::vector<std::int64_t> normalized_shape;
  std::vector<int> axes;  // Which dimensions these are, if they are not the last ones.
  // The name of the second tensor of x's shape, if the spec takes one.
  const char* other_name = "other";
};

// With the layout and the activation of `config`. InvalidArgument as Shape::Create and
// norm::ValidateSpec.
absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceNorm(const v1::ModelConfig& config,
                                                                      ReferenceNormCase norm);

// As the kernels call and take them.
norm::Activation ActivationOf(v1::Activation activation);
double LeakySlopeOf(const v1::ModelConfig& config);

// InvalidArgument with the kernels' message.
absl::Status FromKernels(const norm::Status& status);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_NORM_H_

// The list of the operations that can be verified. A new one is an entry in
// reference_operations.cc.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_OPERATIONS_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_OPERATIONS_H_

#include <memory>

#include "client/verify/reference_operation.h"

namespace normd::client {

// The operation that `config` names. InvalidArgument for none, and for a wrong size of it.
absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceOperation(
    const v1::ModelConfig& config);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_OPERATIONS_H_

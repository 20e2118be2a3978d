// Every operation that a config may name.

#ifndef NORMD_OPERATIONS_OPERATIONS_H_
#define NORMD_OPERATIONS_OPERATIONS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// The operation that `config` names. InvalidArgument when it names none, or with the first invalid
// field of the operation. Does not check the fields beside it; CheckModelConfig does.
absl::StatusOr<std::unique_ptr<const Operation>> MakeOperation(const v1::ModelConfig& config);

}  // namespace normd

#endif  // NORMD_OPERATIONS_OPERATIONS_H_

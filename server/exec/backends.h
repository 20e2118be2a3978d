// Every backend that this build has.

#ifndef NORMD_SERVER_EXEC_BACKENDS_H_
#define NORMD_SERVER_EXEC_BACKENDS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/exec/backend.h"

namespace normd {

// InvalidArgument for a device that cannot be parsed, FailedPrecondition for one that is named but
// is not here or not in this build. "auto" takes every CUDA device, and without one the CPU, with
// one line in the log that says so. `metrics` and `clock` outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options,
                                                       Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_BACKENDS_H_

// All backends of this build.

#ifndef NORMD_SERVER_EXEC_BACKENDS_H_
#define NORMD_SERVER_EXEC_BACKENDS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/exec/backend.h"

namespace normd {

// InvalidArgument for a device that cannot be parsed, FailedPrecondition for one that is named but
// absent or not supported by this build. "auto" takes every CUDA device, and without one the CPU,
// which it logs in one line. `metrics` and `clock` outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options,
                                                       Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_BACKENDS_H_

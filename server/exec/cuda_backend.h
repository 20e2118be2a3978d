// The backend that computes on CUDA devices. The build selects the source that implements it.

#ifndef NORMD_SERVER_EXEC_CUDA_BACKEND_H_
#define NORMD_SERVER_EXEC_CUDA_BACKEND_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/exec/backend.h"

namespace normd {

// Uses the devices of `ordinals`; empty: every device. FailedPrecondition, with the reason, if this
// build has no CUDA backend, or the machine no driver, no device, or not the named one.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& ordinals,
                                                           const BackendOptions& options,
                                                           Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_BACKEND_H_

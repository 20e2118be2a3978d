// The backend that computes on CUDA devices. Which source implements it is the build's choice.

#ifndef NORMD_SERVER_EXEC_CUDA_BACKEND_H_
#define NORMD_SERVER_EXEC_CUDA_BACKEND_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/exec/backend.h"

namespace normd {

// On the devices of `ordinals`; empty: every device. FailedPrecondition, saying which, when this
// build has no CUDA backend, the machine no driver or no device, or not the one named.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& ordinals,
                                                           const BackendOptions& options,
                                                           Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_BACKEND_H_

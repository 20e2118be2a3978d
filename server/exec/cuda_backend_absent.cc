#include "server/exec/backends.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& /*ordinals*/,
                                                           const BackendOptions& /*options*/,
                                                           Metrics& /*metrics*/,
                                                           const Clock& /*clock*/) {
  return absl::FailedPreconditionError("this build has no CUDA backend");
}

}  // namespace normd

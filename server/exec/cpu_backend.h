// The backend that computes on the host.

#ifndef NORMD_SERVER_EXEC_CPU_BACKEND_H_
#define NORMD_SERVER_EXEC_CPU_BACKEND_H_

#include <memory>

#include "server/exec/backend.h"

namespace normd::norm::cpu {
class Executor;
}  // namespace normd::norm::cpu

namespace normd {

// Keeps a model's host parameters and, for a fused layer, the packed weight.
std::unique_ptr<Backend> CreateCpuBackend(const BackendOptions& options, Metrics& metrics,
                                          const Clock& clock);

// The model's CpuProgram. `kernels` outlives it. ResourceExhausted when it does not fit.
absl::StatusOr<std::unique_ptr<BackendState>> MakeCpuProgram(const Model& model,
                                                             const norm::cpu::Executor& kernels);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_BACKEND_H_

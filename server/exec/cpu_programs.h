// The CPU's implementation of every kernel contract.

#ifndef NORMD_SERVER_EXEC_CPU_PROGRAMS_H_
#define NORMD_SERVER_EXEC_CPU_PROGRAMS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/exec/cpu_program.h"
#include "server/model/model.h"

namespace normd {

// For the model's program. `kernels` outlives it. ResourceExhausted when it does not fit.
absl::StatusOr<std::unique_ptr<BackendState>> MakeCpuProgram(const Model& model,
                                                             const norm::cpu::Executor& kernels);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_PROGRAMS_H_

#include "server/exec/cpu_programs.h"

#include <variant>

#include "operations/kernel_program.h"
#include "server/exec/cpu_linear_norm.h"
#include "server/exec/cpu_norm.h"

namespace normd {
namespace {

using State = absl::StatusOr<std::unique_ptr<BackendState>>;

struct Maker {
  State operator()(const NormProgram& program) const { return std::make_unique<CpuNorm>(program); }
  State operator()(const LinearNormProgram& program) const {
    return CpuLinearNorm::Create(program, kernels);
  }
  const norm::cpu::Executor& kernels;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BackendState>> MakeCpuProgram(const Model& model,
                                                             const norm::cpu::Executor& kernels) {
  return std::visit(Maker{kernels}, model.program());
}

}  // namespace normd

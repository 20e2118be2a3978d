// The contract of kernels/linear_norm.h on the CPU.

#ifndef NORMD_SERVER_EXEC_CPU_LINEAR_NORM_H_
#define NORMD_SERVER_EXEC_CPU_LINEAR_NORM_H_

#include <memory>
#include <utility>

#include "kernels/cpu/linear_norm.h"
#include "operations/kernel_program.h"
#include "server/exec/cpu_program.h"

namespace normd {

// Keeps the packed weight. An input in several pieces is gathered as a whole: y into the output, x
// into memory of its own.
class CpuLinearNorm final : public CpuProgram {
 public:
  // `kernels` outlives it. ResourceExhausted when the packed weight does not fit.
  static absl::StatusOr<std::unique_ptr<CpuLinearNorm>> Create(const LinearNormProgram& program,
                                                               const norm::cpu::Executor& kernels);

  const norm::cpu::LinearNorm& layer() const { return *layer_; }
  std::unique_ptr<CpuRun> MakeRun(const CpuResources& resources) const override;

 private:
  explicit CpuLinearNorm(std::unique_ptr<norm::cpu::LinearNorm> layer) : layer_(std::move(layer)) {}

  const std::unique_ptr<norm::cpu::LinearNorm> layer_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_LINEAR_NORM_H_

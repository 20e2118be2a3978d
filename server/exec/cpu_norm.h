// The contract of kernels/norm.h on the CPU.

#ifndef NORMD_SERVER_EXEC_CPU_NORM_H_
#define NORMD_SERVER_EXEC_CPU_NORM_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/segment_tensors.h"
#include "operations/kernel_program.h"
#include "server/exec/cpu_program.h"

namespace normd {

// Samples that lie in one piece are computed from there into the output. Cut samples are first
// copied into an output and computed there: x's into y, a residual's into residual_out; other
// inputs' into memory of the pool, a little at a time. So the host copies a tensor at most once on
// the way in, most rows not at all, and never on the way out.
class CpuNorm final : public CpuProgram {
 public:
  // The model that owns the program owns this.
  explicit CpuNorm(const NormProgram& program);

  const NormProgram& program() const { return program_; }
  // The program's, but 16-bit ones as float32: the kernels would widen them in every call.
  const norm::NormParams& params() const { return params_; }
  // A request's tensors, in order.
  const std::vector<norm::SegmentInput>& inputs() const { return inputs_; }
  const std::vector<norm::SegmentOutput>& outputs() const { return outputs_; }
  // For each output the input that it may replace.
  const std::vector<std::optional<std::size_t>>& overwritten() const { return overwritten_; }
  std::unique_ptr<CpuRun> MakeRun(const CpuResources& resources) const override;

 private:
  void Widen(std::int64_t elements, norm::ParamVector& param);

  const NormProgram& program_;
  norm::NormParams params_;
  std::vector<std::vector<float>> widened_;  // The memory of these.
  const std::vector<norm::SegmentInput> inputs_;
  const std::vector<norm::SegmentOutput> outputs_;
  std::vector<std::optional<std::size_t>> overwritten_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_NORM_H_

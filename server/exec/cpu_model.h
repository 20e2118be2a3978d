// What the CPU backend keeps of a model beside its host parameters.

#ifndef NORMD_SERVER_EXEC_CPU_MODEL_H_
#define NORMD_SERVER_EXEC_CPU_MODEL_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cpu/linear_norm.h"
#include "kernels/cpu/normalize.h"
#include "server/model/model.h"

namespace normd {

// Of a fused layer: its weight, packed. Immutable.
class CpuModel final : public BackendState {
 public:
  // Null for a norm. `kernels` outlives it. ResourceExhausted when the packed weight does not fit.
  static absl::StatusOr<std::unique_ptr<CpuModel>> Create(const Model& model,
                                                          const norm::cpu::Executor& kernels);

  const norm::cpu::LinearNorm& layer() const { return *layer_; }

 private:
  explicit CpuModel(std::unique_ptr<norm::cpu::LinearNorm> layer) : layer_(std::move(layer)) {}

  const std::unique_ptr<norm::cpu::LinearNorm> layer_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_MODEL_H_

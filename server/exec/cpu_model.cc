#include "server/exec/cpu_model.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/exec/kernel_status.h"

namespace normd {

absl::StatusOr<std::unique_ptr<CpuModel>> CpuModel::Create(const Model& model,
                                                           const norm::cpu::Executor& kernels) {
  const auto* program = std::get_if<LinearNormProgram>(&model.program());
  if (program == nullptr) return nullptr;
  std::unique_ptr<norm::cpu::LinearNorm> layer;
  const absl::Status status =
      FromKernel(norm::cpu::LinearNorm::Create(kernels, program->spec, program->params, &layer));
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("linear_norm: ", status.message()));
  }
  return std::unique_ptr<CpuModel>(new CpuModel(std::move(layer)));
}

}  // namespace normd

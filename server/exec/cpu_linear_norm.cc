#include "server/exec/cpu_linear_norm.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/exec/kernel_status.h"

namespace normd {
namespace {

class CpuLinearNormRun final : public CpuRun {
 public:
  explicit CpuLinearNormRun(const CpuResources& resources) : CpuRun(resources) {}

  absl::Status Place(CpuItem& item) override;

 private:
  void Start(const BackendState& state, norm::DType dtype) override;
  absl::Status Launch() override;
  void Forget() override { segments_.clear(); }

  // For the current batch.
  const norm::cpu::LinearNorm* layer_ = nullptr;
  norm::DType dtype_ = norm::DType::kFloat32;
  std::vector<norm::LinearNormSegment> segments_;
};

void CpuLinearNormRun::Start(const BackendState& state, norm::DType dtype) {
  layer_ = &static_cast<const CpuLinearNorm&>(state).layer();
  dtype_ = dtype;
}

absl::Status CpuLinearNormRun::Place(CpuItem& item) {
  Request& request = *item.request;
  std::byte* const out = item.outputs[0];
  bool in_place = false;
  const absl::StatusOr<const std::byte*> x = InOnePiece(item, 0, nullptr, in_place);
  if (!x.ok()) return x.status();
  absl::StatusOr<const std::byte*> y = nullptr;
  if (request.inputs.size() > 1) y = InOnePiece(item, 1, out, in_place);
  if (!y.ok()) return y.status();
  segments_.push_back({*x, *y, out, request.geometry.samples});
  if (!in_place) request.ReleaseInputs();
  return absl::OkStatus();
}

absl::Status CpuLinearNormRun::Launch() {
  if (segments_.empty()) return absl::OkStatus();
  return FromKernel(layer_->Compute(dtype_, segments_.data(), segments_.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuLinearNorm>> CpuLinearNorm::Create(
    const LinearNormProgram& program, const norm::cpu::Executor& kernels) {
  std::unique_ptr<norm::cpu::LinearNorm> layer;
  const absl::Status status =
      FromKernel(norm::cpu::LinearNorm::Create(kernels, program.spec, program.params, &layer));
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("linear_norm: ", status.message()));
  }
  return std::unique_ptr<CpuLinearNorm>(new CpuLinearNorm(std::move(layer)));
}

std::unique_ptr<CpuRun> CpuLinearNorm::MakeRun(const CpuResources& resources) const {
  return std::make_unique<CpuLinearNormRun>(resources);
}

}  // namespace normd

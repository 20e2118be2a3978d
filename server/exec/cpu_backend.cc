#include "server/exec/backends.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/buffer_pool.h"
#include "kernels/cpu/normalize.h"
#include "server/exec/cpu_lane.h"
#include "server/exec/cpu_linear_norm.h"
#include "server/exec/cpu_norm.h"

namespace normd {
namespace {

using State = absl::StatusOr<std::unique_ptr<BackendState>>;

// The implementation of each kernel contract.
struct ProgramMaker {
  State operator()(const NormProgram& program) const { return std::make_unique<CpuNorm>(program); }
  State operator()(const LinearNormProgram& program) const {
    return CpuLinearNorm::Create(program, kernels);
  }
  const norm::cpu::Executor& kernels;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendOptions& options, Metrics& metrics, const Clock& clock)
      : metrics_(metrics),
        clock_(clock),
        kernels_(options.cpu_threads),
        lanes_(options.cpu_lanes > 0 ? options.cpu_lanes : std::max(kernels_.max_threads() / 4, 2)),
        pool_(options.pool_bytes),
        pool_watch_(metrics.WatchPool("host", [this] {
          return PoolUse{pool_.used_bytes(), pool_.free_bytes()};
        })) {
    metrics.SetDevice("cpu", Description());
  }

  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override {
    return MakeCpuProgram(model, kernels_);
  }

  std::vector<std::unique_ptr<Lane>> MakeLanes() override {
    return Make("cpu", "cpu:", lanes_, kernels_);
  }

  // More could not compute at once. They are a separate device in the metrics: their spare time
  // says nothing about the lanes.
  std::vector<std::unique_ptr<Lane>> MakeInlineLanes() override {
    return Make("cpu:inline", "cpu:inline/", kernels_.max_threads(), inline_kernels_);
  }

  std::string Description() const override {
    const int threads = kernels_.max_threads();
    return absl::StrCat("cpu, ", threads, threads == 1 ? " thread, " : " threads, ",
                        norm::cpu::SimdTargetName());
  }

 private:
  std::vector<std::unique_ptr<Lane>> Make(const char* device, const std::string& prefix, int count,
                                          const norm::cpu::Executor& kernels) {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (int i = 0; i < count; ++i) {
      std::string name = absl::StrCat(prefix, i);
      LaneMetrics& lane_metrics = metrics_.ForLane(device, name);
      lanes.push_back(
          std::make_unique<CpuLane>(std::move(name), kernels, pool_, lane_metrics, clock_));
    }
    return lanes;
  }

  Metrics& metrics_;
  const Clock& clock_;
  const norm::cpu::Executor kernels_;
  // On the caller's thread alone: inline work is over before other threads could help.
  const norm::cpu::Executor inline_kernels_{1};
  const int lanes_;
  BufferPool pool_;
  std::shared_ptr<void> pool_watch_;  // Last: ends before the pool that it reads.
};

}  // namespace

std::unique_ptr<Backend> CreateCpuBackend(const BackendOptions& options, Metrics& metrics,
                                          const Clock& clock) {
  return std::make_unique<CpuBackend>(options, metrics, clock);
}

absl::StatusOr<std::unique_ptr<BackendState>> MakeCpuProgram(const Model& model,
                                                             const norm::cpu::Executor& kernels) {
  return std::visit(ProgramMaker{kernels}, model.program());
}

}  // namespace normd

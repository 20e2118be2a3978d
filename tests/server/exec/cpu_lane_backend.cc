#include "kernels/cpu/normalize.h"
#include "server/exec/backends.h"
#include "server/exec/cpu_lane.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/lane_backend.h"

namespace normd {
namespace {

class CpuLaneBackend final : public LaneBackend {
 public:
  Lane& lane() override { return lane_; }
  absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) override {
    return MakeCpuProgram(model, kernels_);
  }
  Closeness closeness() const override { return Closeness::kKernels; }
  std::int64_t LargeBytes() const override { return std::int64_t{6} << 20; }

 private:
  SteadyClock clock_;
  CountingLaneMetrics metrics_;
  norm::cpu::Executor kernels_{2};
  BufferPool pool_{std::int64_t{64} << 20};
  CpuLane lane_{"cpu:0", kernels_, pool_, metrics_, clock_};
};

}  // namespace

std::vector<std::string> LanePaths() { return {"Cpu"}; }

std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string&) {
  return std::make_unique<CpuLaneBackend>();
}

}  // namespace normd

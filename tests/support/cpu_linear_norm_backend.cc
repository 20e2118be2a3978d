#include "kernels/cpu/linear_norm.h"
#include "tests/support/linear_norm_backend.h"

namespace normd::norm::testing {
namespace {

class CpuLinearNormBackend : public LinearNormBackend {
 public:
  std::string Name() const override { return std::string("cpu/") + cpu::SimdTargetName(); }
  bool Available() const override { return true; }
  Status LinearNorm(const LinearNormSpec& spec, const LinearNormParams& params,
                    const LinearNormSegment* segments, std::size_t count) override {
    std::unique_ptr<cpu::LinearNorm> layer;
    if (Status status = cpu::LinearNorm::Create(executor_, spec, params, &layer); !status.ok()) {
      return status;
    }
    return layer->Compute(spec.dtype, segments, count);
  }

 private:
  cpu::Executor executor_;
};

}  // namespace

std::unique_ptr<LinearNormBackend> MakeLinearNormBackend() {
  return std::make_unique<CpuLinearNormBackend>();
}

}  // namespace normd::norm::testing

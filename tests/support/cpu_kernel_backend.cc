#include "kernels/cpu/normalize.h"
#include "tests/support/kernel_backend.h"

namespace norm::testing {
namespace {

class CpuKernelBackend : public KernelBackend {
 public:
  std::string Name() const override { return std::string("cpu/") + cpu::SimdTargetName(); }
  bool Available() const override { return true; }
  Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                   std::size_t count) override {
    return executor_.Normalize(spec, params, segments, count);
  }

 private:
  cpu::Executor executor_;
};

}  // namespace

std::unique_ptr<KernelBackend> MakeKernelBackend() { return std::make_unique<CpuKernelBackend>(); }

}  // namespace norm::testing

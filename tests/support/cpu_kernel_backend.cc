#include <cstdlib>
#include <cstring>

#include "hwy/targets.h"
#include "kernels/cpu/normalize.h"
#include "tests/support/kernel_backend.h"

namespace normd::norm::testing {
namespace {

// NORMD_TEST_SIMD=baseline holds the run to the compiler's baseline, AVX2 to that and below, so
// that the tests reach the code of machines older than this one.
void RestrictTargets() {
  const char* wanted = std::getenv("NORMD_TEST_SIMD");
  if (wanted == nullptr) return;
  std::int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86
  if (std::strcmp(wanted, "AVX2") == 0) targets |= HWY_AVX2;
#endif
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class CpuKernelBackend : public KernelBackend {
 public:
  explicit CpuKernelBackend(int threads) : executor_(threads) { RestrictTargets(); }

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

std::unique_ptr<KernelBackend> MakeKernelBackend(int threads) {
  return std::make_unique<CpuKernelBackend>(threads);
}

}  // namespace normd::norm::testing

#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "kernels/cpu/normalize.h"
#include "tests/support/fenced_memory.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/segment_tensors.h"

namespace normd::norm::testing {
namespace {

// NORMD_TEST_SIMD=baseline limits the run to the compiler's baseline, AVX2 to that and below, so
// that the tests reach the code of older machines. Otherwise it uses this machine's instructions.
void RestrictTargets() {
  const char* wanted = std::getenv("NORMD_TEST_SIMD");
  if (wanted == nullptr || std::strcmp(wanted, "native") == 0) return;
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

// With NORMD_TEST_FENCES=1: computes on copies with inaccessible memory next to them, alternately
// before and after.
class FencedCpuKernelBackend : public CpuKernelBackend {
 public:
  using CpuKernelBackend::CpuKernelBackend;

  Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                   std::size_t count) override {
    // The backend must refuse these before their memory is read.
    if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
    if (Status status = ValidateSegments(spec, segments, count, InputAlignment::kByte);
        !status.ok()) {
      return status;
    }
    behind_ = !behind_;
    FencedMirror mirror(behind_ ? FencedMemory::Fence::kBehind : FencedMemory::Fence::kBefore);
    const NormParams fenced_params = Copy(spec, params, &mirror);
    std::deque<NormParams> own;
    std::vector<Segment> fenced(segments, segments + count);
    for (Segment& segment : fenced) {
      for (const SegmentTensor& tensor : TensorsOf(spec, &segment)) {
        *tensor.address = mirror.Copy(*tensor.address, tensor.bytes);
      }
      if (segment.params == nullptr) continue;
      segment.params = &own.emplace_back(Copy(spec, *segment.params, &mirror));
    }
    const Status status =
        CpuKernelBackend::Normalize(spec, fenced_params, fenced.data(), fenced.size());
    for (std::size_t i = 0; i < count; ++i) {
      Segment original = segments[i];
      const std::vector<SegmentTensor> to = TensorsOf(spec, &original);
      const std::vector<SegmentTensor> from = TensorsOf(spec, &fenced[i]);
      for (std::size_t t = 0; t < to.size(); ++t) {
        if (!to[t].is_output || *to[t].address == nullptr || to[t].bytes == 0) continue;
        std::memcpy(*to[t].address, *from[t].address, to[t].bytes);
      }
    }
    return status;
  }

 private:
  static NormParams Copy(const NormSpec& spec, NormParams params, FencedMirror* mirror) {
    for (const ParamTensor& tensor : TensorsOf(spec, &params)) {
      tensor.vector->data = mirror->Copy(tensor.vector->data, tensor.bytes);
    }
    return params;
  }

  bool behind_ = false;
};

}  // namespace

std::unique_ptr<KernelBackend> MakeKernelBackend(int threads) {
  if (std::getenv("NORMD_TEST_FENCES") != nullptr) {
    return std::make_unique<FencedCpuKernelBackend>(threads);
  }
  return std::make_unique<CpuKernelBackend>(threads);
}

}  // namespace normd::norm::testing

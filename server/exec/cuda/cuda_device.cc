#include "server/exec/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear_norm.h"
#include "server/exec/cuda/cuda_context.h"
#include "server/exec/cuda/cuda_memory.h"
#include "server/exec/cuda/cuda_stream.h"

namespace normd {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaContext> context, std::unique_ptr<CudaMemory> memory)
      : context_(std::move(context)), memory_(std::move(memory)) {}

  const std::string& name() const override { return context_->name(); }
  int ordinal() const override { return context_->index(); }
  std::string description() const override { return context_->description(); }

  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override {
    return kind == MemoryKind::kPinned ? memory_->AllocatePinned(bytes)
                                       : memory_->AllocateDevice(bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      std::size_t largest_launch_bytes) override {
    return CreateCudaStream(context_, *memory_, largest_launch_bytes);
  }
  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override { return memory_->Info(); }

  LinearSizes SizesOf(const norm::LinearNormSpec& spec) const override {
    LinearSizes sizes;
    sizes.prepared = norm::cuda::LinearWeightBytes(spec, context_->limits());
    for (const norm::DType dtype :
         {norm::DType::kFloat32, norm::DType::kFloat16, norm::DType::kBFloat16}) {
      norm::LinearNormSpec typed = spec;
      typed.dtype = dtype;
      sizes.workspace = std::max(
          sizes.workspace, norm::cuda::LinearWorkspaceBytes(typed, norm::cuda::kLinearChunkSamples,
                                                            context_->limits()));
    }
    return sizes;
  }

  bool usable() const override { return context_->usable(); }

  void BeginRange(const char* name) override { nvtxRangePushA(name); }
  void EndRange() override { nvtxRangePop(); }

 private:
  const std::shared_ptr<CudaContext> context_;  // shared with its streams and its memory
  const std::unique_ptr<CudaMemory> memory_;
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  absl::StatusOr<std::shared_ptr<CudaContext>> context = CudaContext::Open(index);
  if (!context.ok()) return context.status();
  absl::StatusOr<std::unique_ptr<CudaMemory>> memory = CudaMemory::Create(*context);
  if (!memory.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat((*context)->name(), ": ", memory.status().message()));
  }
  return std::make_unique<CudaDevice>(*std::move(context), *std::move(memory));
}

}  // namespace normd

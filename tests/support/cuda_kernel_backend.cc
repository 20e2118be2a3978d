#include <cuda_runtime_api.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/normalize.h"
#include "tests/support/device_mirror.h"
#include "tests/support/kernel_backend.h"

namespace normd::norm::testing {
namespace {

class CudaKernelBackend : public KernelBackend {
 public:
  CudaKernelBackend() {
    int devices = 0;
    available_ = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (available_) limits_status_ = cuda::QueryDeviceLimits(0, &limits_);
  }

  std::string Name() const override { return "cuda"; }
  bool Available() const override { return available_; }

  Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                   std::size_t count) override {
    // A device that the kernels cannot use is a failure, and no reason to skip.
    if (!limits_status_.ok()) return limits_status_;
    // What the backend refuses must be seen before its memory is read.
    if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
    if (Status status = ValidateSegments(spec, segments, count); !status.ok()) return status;
    DeviceMirror mirror;
    cudaError_t error = cudaSuccess;
    const NormParams device_params = Copy(spec, params, mirror, &error);
    std::deque<NormParams> own;
    std::vector<Segment> device(segments, segments + count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = Bytes(spec, segments[i]);
      device[i].x = mirror.Copy(segments[i].x, bytes, &error);
      device[i].y = mirror.Copy(segments[i].y, bytes, &error);
      device[i].residual = mirror.Copy(segments[i].residual, bytes, &error);
      device[i].residual_out = mirror.Copy(segments[i].residual_out, bytes, &error);
      if (segments[i].params == nullptr) continue;
      device[i].params = &own.emplace_back(Copy(spec, *segments[i].params, mirror, &error));
    }
    const std::size_t workspace_bytes = cuda::WorkspaceBytes(spec, device.data(), count, limits_);
    cuda::LaunchOptions options;
    options.workspace = mirror.Junk(workspace_bytes, &error);
    options.workspace_bytes = workspace_bytes;
    if (error != cudaSuccess) return Failure(error);
    Status status = cuda::InitWorkspace(options.workspace, workspace_bytes, nullptr);
    if (status.ok()) {
      status = cuda::Normalize(spec, device_params, device.data(), count, limits_, options);
    }
    error = cudaDeviceSynchronize();
    for (std::size_t i = 0; i < count && error == cudaSuccess && status.ok(); ++i) {
      error =
          cudaMemcpy(segments[i].y, device[i].y, Bytes(spec, segments[i]), cudaMemcpyDeviceToHost);
    }
    return status.ok() && error != cudaSuccess ? Failure(error) : status;
  }

 private:
  static NormParams Copy(const NormSpec& spec, const NormParams& params, DeviceMirror& mirror,
                         cudaError_t* error) {
    NormParams copied;
    for (auto [from, to] :
         {std::pair(&params.gamma, &copied.gamma), std::pair(&params.beta, &copied.beta),
          std::pair(&params.mean, &copied.mean), std::pair(&params.variance, &copied.variance)}) {
      const std::size_t bytes = static_cast<std::size_t>(spec.channels) * SizeOf(from->dtype);
      *to = {mirror.Copy(from->data, bytes, error), from->dtype};
    }
    return copied;
  }
  static std::size_t Bytes(const NormSpec& spec, const Segment& segment) {
    return static_cast<std::size_t>(segment.samples * segment.spatial * spec.channels) *
           SizeOf(spec.dtype);
  }
  static Status Failure(cudaError_t error) {
    return Status(StatusCode::kDeviceError, cudaGetErrorString(error));
  }

  bool available_ = false;
  cuda::DeviceLimits limits_;
  Status limits_status_;
};

}  // namespace

std::unique_ptr<KernelBackend> MakeKernelBackend(int) {
  return std::make_unique<CudaKernelBackend>();
}

}  // namespace normd::norm::testing

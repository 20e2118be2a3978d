#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "kernels/cuda/normalize.h"
#include "tests/support/device_mirror.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/segment_tensors.h"

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
    // The backend must refuse these before their memory is read.
    if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
    if (Status status = ValidateSegments(spec, segments, count); !status.ok()) return status;
    DeviceMirror mirror;
    cudaError_t error = cudaSuccess;
    const NormParams device_params = Copy(spec, params, mirror, &error);
    std::deque<NormParams> own;
    std::vector<Segment> device(segments, segments + count);
    for (Segment& segment : device) {
      for (const SegmentTensor& tensor : TensorsOf(spec, &segment)) {
        *tensor.address = mirror.Copy(*tensor.address, tensor.bytes, &error);
      }
      if (segment.params == nullptr) continue;
      segment.params = &own.emplace_back(Copy(spec, *segment.params, mirror, &error));
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
      Segment host = segments[i];
      const std::vector<SegmentTensor> to = TensorsOf(spec, &host);
      const std::vector<SegmentTensor> from = TensorsOf(spec, &device[i]);
      for (std::size_t t = 0; t < to.size() && error == cudaSuccess; ++t) {
        if (!to[t].is_output || *to[t].address == nullptr) continue;
        error = cudaMemcpy(*to[t].address, *from[t].address, to[t].bytes, cudaMemcpyDeviceToHost);
      }
    }
    return status.ok() && error != cudaSuccess ? Failure(error) : status;
  }

 private:
  static NormParams Copy(const NormSpec& spec, const NormParams& params, DeviceMirror& mirror,
                         cudaError_t* error) {
    NormParams copied = params;
    for (const ParamTensor& tensor : TensorsOf(spec, &copied)) {
      tensor.vector->data = mirror.Copy(tensor.vector->data, tensor.bytes, error);
    }
    return copied;
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

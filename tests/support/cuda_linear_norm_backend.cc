#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"
#include "tests/support/device_mirror.h"
#include "tests/support/linear_norm_backend.h"

namespace normd::norm::testing {
namespace {

class CudaLinearNormBackend : public LinearNormBackend {
 public:
  CudaLinearNormBackend() {
    int devices = 0;
    available_ = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (available_) limits_status_ = cuda::QueryDeviceLimits(0, &limits_);
  }

  std::string Name() const override { return "cuda"; }
  bool Available() const override { return available_; }

  Status LinearNorm(const LinearNormSpec& spec, const LinearNormParams& params,
                    const LinearNormSegment* segments, std::size_t count) override {
    // A device that the kernels cannot use is a failure, and no reason to skip.
    if (!limits_status_.ok()) return limits_status_;
    // The backend must refuse these before their memory is read.
    if (Status status = ValidateLinearNorm(spec, params); !status.ok()) return status;
    if (Status status = ValidateLinearNormSegments(spec, segments, count); !status.ok()) {
      return status;
    }
    DeviceMirror mirror;
    cudaError_t error = cudaSuccess;
    LinearNormParams device_params;
    device_params.weight =
        Copy(params.weight, spec.in_features * spec.out_features, &mirror, &error);
    device_params.bias = Copy(params.bias, spec.out_features, &mirror, &error);
    const std::size_t weight_bytes = cuda::LinearWeightBytes(spec, limits_);
    void* const prepared = mirror.Junk(weight_bytes, &error);
    std::int64_t samples = 0;
    std::vector<LinearNormSegment> device(segments, segments + count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t x_bytes = Bytes(spec, segments[i], spec.in_features);
      const std::size_t y_bytes = Bytes(spec, segments[i], spec.out_features);
      samples += segments[i].samples;
      device[i].x = mirror.Copy(segments[i].x, x_bytes, &error);
      device[i].y = mirror.Copy(segments[i].y, y_bytes, &error);
      device[i].out = mirror.Copy(segments[i].out, y_bytes, &error);
    }
    cuda::LinearLaunchOptions options;
    options.workspace_bytes = cuda::LinearWorkspaceBytes(spec, samples, limits_);
    options.workspace = mirror.Junk(options.workspace_bytes, &error);
    if (error != cudaSuccess) return Failure(error);
    Status status = cuda::PrepareLinearWeights(spec, device_params, limits_, prepared, weight_bytes,
                                               options.stream);
    if (status.ok()) {
      status = cuda::LinearNorm(spec, prepared, device.data(), count, limits_, options);
    }
    error = cudaDeviceSynchronize();
    for (std::size_t i = 0; i < count && error == cudaSuccess && status.ok(); ++i) {
      error = cudaMemcpy(segments[i].out, device[i].out,
                         Bytes(spec, segments[i], spec.out_features), cudaMemcpyDeviceToHost);
    }
    return status.ok() && error != cudaSuccess ? Failure(error) : status;
  }

 private:
  static ParamVector Copy(const ParamVector& host, std::int64_t elements, DeviceMirror* mirror,
                          cudaError_t* error) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * SizeOf(host.dtype);
    return {mirror->Copy(host.data, bytes, error), host.dtype};
  }
  static std::size_t Bytes(const LinearNormSpec& spec, const LinearNormSegment& segment,
                           std::int64_t features) {
    return static_cast<std::size_t>(segment.samples * features) * SizeOf(spec.dtype);
  }
  static Status Failure(cudaError_t error) {
    return Status(StatusCode::kDeviceError, cudaGetErrorString(error));
  }

  bool available_ = false;
  cuda::DeviceLimits limits_;
  Status limits_status_;
};

}  // namespace

std::unique_ptr<LinearNormBackend> MakeLinearNormBackend() {
  return std::make_unique<CudaLinearNormBackend>();
}

}  // namespace normd::norm::testing

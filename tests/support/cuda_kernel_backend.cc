#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <tuple>
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
    for (Segment& segment : device) {
      for (const Tensor& tensor : TensorsOf(spec, &segment)) {
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
      const std::vector<Tensor> to = TensorsOf(spec, &host);
      const std::vector<Tensor> from = TensorsOf(spec, &device[i]);
      for (std::size_t t = 0; t < to.size() && error == cudaSuccess; ++t) {
        if (!to[t].is_output || *to[t].address == nullptr) continue;
        error = cudaMemcpy(*to[t].address, *from[t].address, to[t].bytes, cudaMemcpyDeviceToHost);
      }
    }
    return status.ok() && error != cudaSuccess ? Failure(error) : status;
  }

 private:
  // One of a segment's arrays; inputs are never written.
  struct Tensor {
    void** address;
    std::size_t bytes;
    bool is_output = false;
  };

  static std::vector<Tensor> TensorsOf(const NormSpec& spec, Segment* segment) {
    const auto input = [](auto** address) {
      return const_cast<void**>(reinterpret_cast<const void* const*>(address));
    };
    const std::size_t element = SizeOf(spec.dtype);
    const std::size_t accumulator = spec.dtype == DType::kFloat64 ? 8 : 4;
    const auto samples = static_cast<std::size_t>(segment->samples);
    const auto channels = samples * static_cast<std::size_t>(spec.channels);
    const auto elements = channels * static_cast<std::size_t>(segment->spatial);
    const bool quantized = spec.quantization != Quantization::kNone;
    const auto rows = samples * static_cast<std::size_t>(RowsOfSample(spec, segment->spatial));
    const std::int64_t length = RowLength(spec, segment->spatial);
    const auto scales =
        spec.quantization_scale == QuantizationScale::kBlock
            ? static_cast<std::size_t>((length + kQuantizationBlock - 1) / kQuantizationBlock)
            : 1;
    const auto styles = samples * static_cast<std::size_t>(spec.styles);
    const auto style_elements = channels * static_cast<std::size_t>(segment->style_spatial);
    return {{input(&segment->x), elements * element},
            {&segment->y, elements * (quantized ? 1 : element), true},
            {input(&segment->residual), elements * element},
            {&segment->residual_out, elements * element, true},
            {input(&segment->other), elements * element},
            {input(&segment->gate), channels * element},
            {input(&segment->scale), channels * element},
            {input(&segment->shift), channels * element},
            {input(&segment->style_index), samples * sizeof(std::int64_t)},
            {input(&segment->style_weights), styles * element},
            {input(&segment->style_tensor), style_elements * element},
            {&segment->mean_out, rows * accumulator, true},
            {&segment->rstd_out, rows * accumulator, true},
            {input(&segment->scale_out), rows * scales * sizeof(float), true}};
  }

  static NormParams Copy(const NormSpec& spec, const NormParams& params, DeviceMirror& mirror,
                         cudaError_t* error) {
    NormParams copied;
    const auto styles = static_cast<std::size_t>(std::max<std::int64_t>(spec.styles, 1));
    for (auto [from, to, rows] :
         {std::tuple(&params.gamma, &copied.gamma, styles),
          std::tuple(&params.beta, &copied.beta, styles),
          std::tuple(&params.mean, &copied.mean, std::size_t{1}),
          std::tuple(&params.variance, &copied.variance, std::size_t{1}),
          std::tuple(&params.input_bias, &copied.input_bias, std::size_t{1})}) {
      const std::size_t bytes =
          rows * static_cast<std::size_t>(spec.channels) * SizeOf(from->dtype);
      *to = {mirror.Copy(from->data, bytes, error), from->dtype};
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

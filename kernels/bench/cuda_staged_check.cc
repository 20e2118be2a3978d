#include "kernels/bench/cuda_staged_check.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "kernels/bench/cuda_memory.h"
#include "kernels/bench/staged_error.h"

namespace normd::norm::bench {
namespace {

// One sample in host memory.
class HostSample {
 public:
  HostSample(const Case& c, const Segment& device, std::int64_t sample) : sample_(sample) {
    const NormSpec& spec = c.spec;
    const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
    const std::int64_t elements = spec.channels * c.spatial;
    const std::int64_t tensor = elements * element;
    const bool quantized = spec.quantization != Quantization::kNone;
    segment_ = device;
    segment_.samples = 1;
    segment_.mean_out = segment_.rstd_out = nullptr;
    Take(tensor, &segment_.x);
    Take(quantized ? elements : tensor, &segment_.y);
    Take(tensor, &segment_.residual);
    Take(tensor, &segment_.residual_out);
    Take(tensor, &segment_.other);
    Take(tensor, &segment_.style_tensor);
    Take(spec.channels * element, &segment_.gate);
    Take(spec.channels * element, &segment_.scale);
    Take(spec.channels * element, &segment_.shift);
    Take(std::int64_t{sizeof(std::int64_t)}, &segment_.style_index);
    if (spec.quantization_scale == QuantizationScale::kStatic) return;
    const std::int64_t row = RowLength(spec, c.spatial);
    const std::int64_t blocks = spec.quantization_scale == QuantizationScale::kBlock
                                    ? (row + kQuantizationBlock - 1) / kQuantizationBlock
                                    : 1;
    Take(elements / row * blocks * std::int64_t{sizeof(float)}, &segment_.scale_out);
  }

  const Status& status() const { return status_; }
  const Segment& segment() const { return segment_; }

 private:
  // Replaces a tensor with `bytes` bytes per sample by a copy in host memory.
  template <typename T>
  void Take(std::int64_t bytes, T** tensor) {
    if (*tensor == nullptr || !status_.ok()) return;
    buffers_.emplace_back(static_cast<std::size_t>(bytes));
    const char* const from = reinterpret_cast<const char*>(*tensor) + sample_ * bytes;
    status_ = ToStatus(
        cudaMemcpy(buffers_.back().data(), from, buffers_.back().size(), cudaMemcpyDeviceToHost),
        "download");
    *tensor = reinterpret_cast<T*>(buffers_.back().data());
  }

  const std::int64_t sample_;
  std::vector<std::vector<char>> buffers_;
  Segment segment_;
  Status status_;
};

}  // namespace

Status MaxErrorOfStages(const Case& c, const HostParams& params, const Segment& segment,
                        std::int64_t max_elements, double* max_error, std::int64_t* checked) {
  const std::int64_t of_sample = c.spec.channels * c.spatial;
  const std::int64_t count =
      std::min(c.samples, std::max<std::int64_t>(max_elements / of_sample, 2));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t sample = count == 1 ? 0 : i * (c.samples - 1) / (count - 1);
    const HostSample host(c, segment, sample);
    if (!host.status().ok()) return host.status();
    *max_error = std::max(*max_error, StagedMaxError(c.spec, params.view(), host.segment()));
    *checked += of_sample;
  }
  return Status();
}

}  // namespace normd::norm::bench

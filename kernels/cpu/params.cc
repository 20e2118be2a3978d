#include "kernels/cpu/params.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/half.h"

namespace normd::norm::cpu {

Param::Param(const ParamVector& source, std::int64_t count) : count_(count) {
  if (source.data == nullptr) return;
  switch (source.dtype) {
    case DType::kFloat32: float32_ = static_cast<const float*>(source.data); return;
    case DType::kFloat64: float64_ = static_cast<const double*>(source.data); return;
    case DType::kFloat16:
    case DType::kBFloat16: break;
  }
  const auto* halves = static_cast<const std::uint16_t*>(source.data);
  float32_copy_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
  std::transform(halves, halves + count, float32_copy_.get(),
                 source.dtype == DType::kFloat16 ? FromFloat16 : FromBFloat16);
  float32_ = float32_copy_.get();
}

const void* Param::AsAccumulationType(DType dtype) {
  const std::size_t count = static_cast<std::size_t>(count_);
  if (dtype == DType::kFloat64) {
    if (float32_ != nullptr && float64_ == nullptr) {
      float64_copy_ = std::make_unique_for_overwrite<double[]>(count);
      std::copy(float32_, float32_ + count_, float64_copy_.get());
      float64_ = float64_copy_.get();
    }
    return float64_;
  }
  if (float64_ != nullptr && float32_ == nullptr) {
    float32_copy_ = std::make_unique_for_overwrite<float[]>(count);
    std::transform(float64_, float64_ + count_, float32_copy_.get(),
                   [](double value) { return static_cast<float>(value); });
    return float32_copy_.get();
  }
  return float32_;
}

}  // namespace normd::norm::cpu

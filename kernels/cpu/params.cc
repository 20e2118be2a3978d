#include "kernels/cpu/params.h"

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/widen.h"

namespace normd::norm::cpu {

Param::Param(const ParamVector& source, std::int64_t count, double offset)
    : count_(count), offset_(offset) {
  if (source.data == nullptr) return;
  switch (source.dtype) {
    case DType::kFloat32: float32_ = static_cast<const float*>(source.data); return;
    case DType::kFloat64: float64_ = static_cast<const double*>(source.data); return;
    default: break;
  }
  float32_copy_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
  Widen(source, count, float32_copy_.get());
  float32_ = float32_copy_.get();
}

const void* Param::AsAccumulationType(DType dtype) {
  if (!present()) return nullptr;
  const auto copy = [&](auto& copied) {
    using Acc = std::remove_reference_t<decltype(copied[0])>;
    copied = std::make_unique_for_overwrite<Acc[]>(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) copied[i] = static_cast<Acc>(At(i, 0));
    return copied.get();
  };
  if (dtype == DType::kFloat64) {
    return float64_ != nullptr && offset_ == 0 ? float64_ : copy(float64_copy_);
  }
  // A separate copy: float32_ keeps pointing to the values without the offset.
  return float32_ != nullptr && offset_ == 0 ? float32_ : copy(float32_sum_);
}

}  // namespace normd::norm::cpu

// Parameters as the CPU backend reads them: float32 or float64, converted once per call if need be.

#ifndef NORMD_KERNELS_CPU_PARAMS_H_
#define NORMD_KERNELS_CPU_PARAMS_H_

#include <cstdint>
#include <memory>

#include "kernels/norm.h"

namespace normd::norm::cpu {

// One parameter vector plus an offset on each element, or an absent one. Borrows `source`; holds a
// converted copy of float16 and bfloat16.
class Param {
 public:
  Param(const ParamVector& source, std::int64_t count, double offset = 0);

  bool present() const { return float32_ != nullptr || float64_ != nullptr; }

  // Exactly the given value plus the offset; `absent` if there is none.
  double At(std::int64_t index, double absent) const {
    if (!present()) return absent;
    const double value =
        float32_ != nullptr ? static_cast<double>(float32_[index]) : float64_[index];
    return offset_ == 0 ? value : value + offset_;  // Adding 0 would lose the sign of -0.
  }

  // `source` itself or its converted copy, without the offset. Valid as long as both.
  ParamVector AsWidened(const ParamVector& source) const {
    return float32_copy_ == nullptr ? source : ParamVector{float32_copy_.get(), DType::kFloat32};
  }

  // The whole vector with At's values, as float or, if `dtype` is float64, as double, rounded if
  // necessary; null if absent. Valid as long as the Param and its source.
  const void* AsAccumulationType(DType dtype);

 private:
  std::int64_t count_;
  double offset_;
  const float* float32_ = nullptr;
  const double* float64_ = nullptr;
  std::unique_ptr<float[]> float32_copy_;  // 16-bit parameters, converted.
  std::unique_ptr<float[]> float32_sum_;   // The result of AsAccumulationType.
  std::unique_ptr<double[]> float64_copy_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_PARAMS_H_

#include "kernels/check.h"

#include <cmath>
#include <cstdio>
#include <string>

namespace normd::norm {

std::int64_t ProductOf(const RunSizes& sizes) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || !MultiplyFits(product, size, &product)) return 0;
  }
  return product;
}

std::string TextOf(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

Status RefuseValue(const char* field, int value, int last) {
  return InvalidArgument(std::string(field) + ": unknown value " + std::to_string(value) +
                         ", wanted at most " + std::to_string(last));
}

Status CheckPresentParam(const char* name, const ParamVector& param) {
  if (!IsNormalized(param.dtype)) {
    return InvalidArgument(std::string(name) + ": dtype " +
                           std::to_string(static_cast<int>(param.dtype)) +
                           " is not float32, float64, float16 or bfloat16");
  }
  if (!IsAligned(param.data, param.dtype)) {
    return InvalidArgument(std::string(name) + ": not aligned to its element");
  }
  return Status();
}

Status CheckEps(double eps) {
  if (std::isfinite(eps) && eps >= 0) return Status();
  return InvalidArgument("eps: " + TextOf(eps) + ", wanted a finite value >= 0");
}

Status CheckActivation(Activation activation) {
  return CheckValue("activation", activation, Activation::kGeluTanh);
}

}  // namespace normd::norm

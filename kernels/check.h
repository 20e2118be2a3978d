// Conditions that the contracts of norm.h and linear_norm.h share. Internal to norm_spec.

#ifndef NORMD_KERNELS_CHECK_H_
#define NORMD_KERNELS_CHECK_H_

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/run_sizes.h"
#include "kernels/status.h"
#include "kernels/types.h"

namespace normd::norm {

inline bool IsAligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % SizeOf(dtype) == 0;
}

// a * b of numbers >= 0; false when it exceeds 63 bits.
inline bool MultiplyFits(std::int64_t a, std::int64_t b, std::int64_t* product) {
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b) return false;
  *product = a * b;
  return true;
}

// The product of the sizes; 0 if a size is negative or the product overflows 63 bits.
std::int64_t ProductOf(const RunSizes& sizes);

// A number as messages show it, such as "1e-09".
std::string TextOf(double value);

// InvalidArgument names the field, what came and what was wanted. Every call makes these checks by
// the dozen, so the part of them that passes is inline.
Status RefuseValue(const char* field, int value, int last);
// Refuses the value of an enumeration after its last enumerator.
template <typename Enum>
Status CheckValue(const char* field, Enum value, Enum last) {
  if (value <= last) return Status();
  return RefuseValue(field, static_cast<int>(value), static_cast<int>(last));
}

Status CheckPresentParam(const char* name, const ParamVector& param);
inline Status CheckParam(const char* name, const ParamVector& param) {  // Accepts an absent one.
  return param.data == nullptr ? Status() : CheckPresentParam(name, param);
}
Status CheckEps(double eps);
Status CheckActivation(Activation activation);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_CHECK_H_

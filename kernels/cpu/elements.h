// Access to elements of tensors that begin at any byte.

#ifndef NORMD_KERNELS_CPU_ELEMENTS_H_
#define NORMD_KERNELS_CPU_ELEMENTS_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/half.h"
#include "kernels/types.h"

namespace normd::norm::cpu {

template <class T>
T LoadUnaligned(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

inline double ElementAt(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat64: return LoadUnaligned<double>(data, index);
    case DType::kFloat16:
      return static_cast<double>(FromFloat16(LoadUnaligned<std::uint16_t>(data, index)));
    case DType::kBFloat16:
      return static_cast<double>(FromBFloat16(LoadUnaligned<std::uint16_t>(data, index)));
    default: return static_cast<double>(LoadUnaligned<float>(data, index));
  }
}

// Null stays null.
inline const void* ByteAt(const void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_ELEMENTS_H_

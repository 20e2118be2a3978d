// PyTorch's element types and the kernels'.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_
#define NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_

#include <cstdint>

#include "client/python/native/torch_abi.h"
#include "kernels/norm_c.h"

namespace normd::torch_ops {

// The codes of the loaded PyTorch.
struct DTypes {
  std::int32_t float32 = Torch().dtype_float32();
  std::int32_t float64 = Torch().dtype_float64();
  std::int32_t float16 = Torch().dtype_float16();
  std::int32_t bfloat16 = Torch().dtype_bfloat16();
  std::int32_t int8 = Torch().dtype_int8();
  std::int32_t uint8 = Torch().dtype_uint8();
  std::int32_t int64 = Torch().dtype_int64();
  std::int32_t float8_e4m3fn = Torch().dtype_float8_e4m3fn();
};

// After LoadTorchAbi.
inline const DTypes& TorchDTypes() {
  static const DTypes dtypes;
  return dtypes;
}

// NORM_FLOAT32 and so on; 0 for types that are not normalized.
inline std::uint8_t ToKernelDType(std::int32_t dtype) {
  const DTypes& torch = TorchDTypes();
  if (dtype == torch.float32) return NORM_FLOAT32;
  if (dtype == torch.float64) return NORM_FLOAT64;
  if (dtype == torch.float16) return NORM_FLOAT16;
  if (dtype == torch.bfloat16) return NORM_BFLOAT16;
  return 0;
}

// Bytes of an element of a type that the operators read or write.
inline std::int64_t ElementBytes(std::int32_t dtype) {
  const DTypes& torch = TorchDTypes();
  if (dtype == torch.float32) return 4;
  if (dtype == torch.float16 || dtype == torch.bfloat16) return 2;
  return dtype == torch.float64 || dtype == torch.int64 ? 8 : 1;
}

inline constexpr const char* kDTypesWanted = "float32, float64, float16 or bfloat16";

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_

// PyTorch's element types and the kernels'.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_
#define NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

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

// A type's name in PyTorch, whose numbers are those of c10::ScalarType, which saved models keep.
inline std::string DTypeName(std::int32_t dtype) {
  // clang-format off
  static constexpr const char* kNames[] = {
      "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32",
      "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2",
      "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
      "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "uint1",
      "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5",
      "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2", "bcomplex32"};
  // clang-format on
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "type " + std::to_string(dtype);
}

inline constexpr const char* kDTypesWanted = "float32, float64, float16 or bfloat16";

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_DTYPES_H_

// Element types, activations and parameters: the vocabulary of all contracts of the kernels.
//
// This header is C++17 and needs no library: host code and .cu files share it.

#ifndef NORMD_KERNELS_TYPES_H_
#define NORMD_KERNELS_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace normd::norm {

// The types of elements. Values are part of the C ABI.
enum class DType : std::uint8_t {
  // For normalized tensors and parameters.
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  // For quantized outputs.
  kInt8 = 5,
  kFloat8E4M3 = 6,
  kInt64 = 7,  // Indexes.
};

// Whether tensors of this type can be normalized, and parameters can have it.
constexpr bool IsNormalized(DType dtype) {
  return dtype >= DType::kFloat32 && dtype <= DType::kBFloat16;
}

// Bytes of one element: 1, 2, 4 or 8; 0 for a value that is not a DType.
constexpr std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kFloat8E4M3: return 1;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
  }
  return 0;
}
// "float32", "float64", "float16", "bfloat16", "int8", "float8_e4m3", "int64"; "invalid" for a
// value that is not a DType.
const char* Name(DType dtype);

enum class Activation : std::uint8_t {
  kNone = 0,
  kRelu = 1,       // max(v, 0); a NaN stays a NaN.
  kLeakyRelu = 2,  // v >= 0 ? v : leaky_slope * v
  kSilu = 3,       // v / (1 + exp(-v))
  kGeluErf = 4,    // v / 2 * (1 + erf(v / sqrt(2)))
  kGeluTanh = 5,   // v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v^3)))
};

// An array of parameters, whose length follows from the contract; data == nullptr means absent.
// Borrowed.
struct ParamVector {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;  // Need not be the tensors' type.
};

}  // namespace normd::norm

#endif  // NORMD_KERNELS_TYPES_H_

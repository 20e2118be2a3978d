#include "kernels/types.h"

namespace normd::norm {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt8: return "int8";
    case DType::kFloat8E4M3: return "float8_e4m3";
    case DType::kInt64: return "int64";
  }
  return "invalid";
}

}  // namespace normd::norm

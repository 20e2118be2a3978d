#include "server/model/data_type.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace normd {

absl::StatusOr<norm::DType> FromProto(v1::DataType dtype) {
  switch (dtype) {
    case v1::FLOAT32: return norm::DType::kFloat32;
    case v1::FLOAT64: return norm::DType::kFloat64;
    case v1::FLOAT16: return norm::DType::kFloat16;
    case v1::BFLOAT16: return norm::DType::kBFloat16;
    default: break;
  }
  const std::string got = dtype == v1::DATA_TYPE_UNSPECIFIED
                              ? "missing"
                              : absl::StrCat(static_cast<int>(dtype), " is unknown");
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: ", got, ", wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"));
}

v1::DataType ToProto(norm::DType dtype) {
  switch (dtype) {
    case norm::DType::kFloat32: return v1::FLOAT32;
    case norm::DType::kFloat64: return v1::FLOAT64;
    case norm::DType::kFloat16: return v1::FLOAT16;
    case norm::DType::kBFloat16: return v1::BFLOAT16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

}  // namespace normd

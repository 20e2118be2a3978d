#include "server/model/data_type.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "wire/data_type.h"

namespace normd {

absl::StatusOr<norm::DType> FromProto(v1::DataType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::protocol, static_cast<int>(dtype));
  if (type != nullptr) return type->dtype;
  const std::string got = dtype == v1::DATA_TYPE_UNSPECIFIED
                              ? "missing"
                              : absl::StrCat(static_cast<int>(dtype), " is unknown");
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: ", got, ", wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"));
}

v1::DataType ToProto(norm::DType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::dtype, dtype);
  return static_cast<v1::DataType>(type == nullptr ? 0 : type->protocol);
}

}  // namespace normd

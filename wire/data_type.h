// The names of the element types in the protocol, in text and in files. Only this table knows these
// names; kernels/norm.h says what a type is.

#ifndef NORMD_WIRE_DATA_TYPE_H_
#define NORMD_WIRE_DATA_TYPE_H_

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/types.h"

namespace normd {

struct DataTypeNames {
  norm::DType dtype;
  int protocol;                   // The number of normd.v1.DataType.
  absl::string_view name;         // As norm::Name.
  absl::string_view short_name;   // On command lines.
  absl::string_view inference;    // "datatype" of the Open Inference Protocol.
  absl::string_view npy;          // "descr" of an .npy file.
  absl::string_view safetensors;  // "dtype" of a safetensors file.
};

// NumPy has no name for bfloat16 and float8: ml_dtypes writes raw bytes. The Open Inference
// Protocol has none for float8: its bits travel as UINT8.
inline constexpr DataTypeNames kDataTypes[] = {
    {norm::DType::kFloat32, 1, "float32", "f32", "FP32", "<f4", "F32"},
    {norm::DType::kFloat64, 2, "float64", "f64", "FP64", "<f8", "F64"},
    {norm::DType::kFloat16, 3, "float16", "f16", "FP16", "<f2", "F16"},
    {norm::DType::kBFloat16, 4, "bfloat16", "bf16", "BF16", "<V2", "BF16"},
    {norm::DType::kInt8, 5, "int8", "i8", "INT8", "|i1", "I8"},
    {norm::DType::kFloat8E4M3, 6, "float8_e4m3", "f8", "UINT8", "<V1", "F8_E4M3"},
    {norm::DType::kInt64, 7, "int64", "i64", "INT64", "<i8", "I64"},
};

// The type that has `value` in this column, or null: FindDataType(&DataTypeNames::npy, "<f4").
template <typename T>
constexpr const DataTypeNames* FindDataType(T DataTypeNames::*column,
                                            const std::type_identity_t<T>& value) {
  for (const DataTypeNames& type : kDataTypes) {
    if (type.*column == value) return &type;
  }
  return nullptr;
}

// Requires one of norm::DType's enumerators.
constexpr const DataTypeNames& NamesOf(norm::DType dtype) {
  return *FindDataType(&DataTypeNames::dtype, dtype);
}

// "float32, float64, float16, bfloat16": the types of normalized tensors, as an error lists them.
inline std::string ListDataTypes(absl::string_view DataTypeNames::*column) {
  std::string list;
  for (const DataTypeNames& type : kDataTypes) {
    if (!norm::IsNormalized(type.dtype)) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", type.*column);
  }
  return list;
}

}  // namespace normd

#endif  // NORMD_WIRE_DATA_TYPE_H_

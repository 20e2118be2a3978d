#include "client/tensor/tensor.h"

#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "wire/data_type.h"

namespace normd::client {

absl::StatusOr<norm::DType> ParseDType(absl::string_view name) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::name, name);
  if (type == nullptr) type = FindDataType(&DataTypeNames::short_name, name);
  if (type != nullptr && norm::IsNormalized(type->dtype)) return type->dtype;
  return absl::InvalidArgumentError(absl::StrCat("dtype: \"", name, "\" is none of ",
                                                 ListDataTypes(&DataTypeNames::name), " (",
                                                 ListDataTypes(&DataTypeNames::short_name), ")"));
}

absl::StatusOr<Shape> ParseShape(absl::string_view text) {
  std::vector<std::int64_t> dims;
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar("x,"))) {
    if (!absl::SimpleAtoi(part, &dims.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape: \"", text, "\", wanted dimensions such as 2x64x512x512 or 2,64,512,512"));
    }
  }
  return Shape::Create(dims);
}

absl::StatusOr<std::int64_t> TensorBytes(norm::DType dtype, const Shape& shape) {
  const std::optional<std::int64_t> bytes =
      CheckedMultiply(shape.elements(), static_cast<std::int64_t>(norm::SizeOf(dtype)));
  if (!bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.ToString(), " of ",
                                                   norm::Name(dtype), " has more than 2^63 bytes"));
  }
  return *bytes;
}

absl::StatusOr<Tensor> Tensor::Allocate(norm::DType dtype, Shape shape) {
  constexpr std::size_t kAlignment = 64;
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.size_ = static_cast<std::size_t>(*bytes);
  // aligned_alloc wants a multiple of the alignment; an empty tensor still gets an address.
  const std::size_t padded = (tensor.size_ / kAlignment + 1) * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a tensor of ", *bytes,
                                                     " bytes, shape ", tensor.shape_.ToString()));
  }
  tensor.data_ = std::shared_ptr<std::byte[]>(data, [](std::byte* memory) { std::free(memory); });
  return tensor;
}

}  // namespace normd::client

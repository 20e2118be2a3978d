#include "base/shape.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd {

std::optional<std::int64_t> CheckedMultiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

absl::StatusOr<Shape> Shape::Create(absl::Span<const std::int64_t> dims) {
  if (dims.size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", dims.size(), " dimensions, wanted at most ", kMaxRank));
  }
  std::int64_t product = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "]: ", dims[i], ", wanted 0 or more"));
    }
    // A zero must not hide an overflow beside it: other products skip it.
    const std::optional<std::int64_t> next = CheckedMultiply(product, dims[i] == 0 ? 1 : dims[i]);
    if (!next) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape: [", absl::StrJoin(dims, ", "), "] has more than 2^63 elements, wanted at most ",
          std::numeric_limits<std::int64_t>::max()));
    }
    product = *next;
  }
  Shape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  return shape;
}

std::int64_t Shape::Product(int first, int last) const {
  std::int64_t product = 1;
  for (int i = first; i < last; ++i) product *= dim(i);
  return product;
}

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(dims_, ", "), "]"); }

std::string PatternText(absl::Span<const std::int64_t> pattern) {
  const auto dimension = [](std::string* out, std::int64_t size) {
    if (size == kAnySize) {
      out->append("?");
    } else if (size == kAnyDimensions) {
      out->append("*");
    } else if (size == kOwnDimensions) {
      out->append("*'");
    } else {
      absl::StrAppend(out, size);
    }
  };
  return absl::StrCat("[", absl::StrJoin(pattern, ", ", dimension), "]");
}

}  // namespace normd

#include "operations/field_checks.h"

#include <cstddef>
#include <limits>
#include <string>

#include "base/shape.h"
#include "operations/operation.h"

namespace normd {

absl::Status InvalidField(absl::string_view field, absl::string_view got,
                          absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", got, ", wanted ", wanted));
}

absl::Status CheckChannels(absl::string_view operation, std::int64_t channels) {
  return CheckCount(absl::StrCat(operation, ".channels"), channels);
}

absl::Status CheckCount(absl::string_view field, std::int64_t count) {
  if (count >= 1 && count <= kMaxChannels) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(count), absl::StrCat("1 to ", kMaxChannels));
}

absl::Status CheckFinite(absl::string_view field, double value) {
  if (std::fabs(value) <= std::numeric_limits<float>::max()) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value), "a finite float32 value");
}

absl::Status CheckNormalizedShape(absl::string_view operation,
                                  absl::Span<const std::int64_t> dims) {
  const std::string field = absl::StrCat(operation, ".normalized_shape");
  if (dims.empty()) return InvalidField(field, "missing", "at least one dimension");
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(dims[i]), "at least 1");
    }
  }
  const absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", shape.status().message()));
  }
  // The limit of kernels/norm.h.
  constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 8;
  if (shape->elements() > kMostElements) {
    return InvalidField(field, absl::StrCat(shape->elements(), " elements in ", shape->ToString()),
                        absl::StrCat("at most ", kMostElements));
  }
  return absl::OkStatus();
}

}  // namespace normd

#include "base/shape_pattern.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd {

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

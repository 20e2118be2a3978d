#include "server/model/model_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {

absl::Status CheckModelName(absl::string_view name) {
  constexpr std::size_t kMaxLength = 128;
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  if (!name.empty() && name.size() <= kMaxLength && absl::ascii_isalnum(name.front()) &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model: \"", Printable(name, 32), "\"",
      name.size() > kMaxLength ? absl::StrCat(" (", name.size(), " bytes)") : "", ", wanted 1 to ",
      kMaxLength, " letters, digits, '_', '-' and '.', beginning with a letter or a digit"));
}

}  // namespace normd

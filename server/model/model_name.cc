#include "server/model/model_name.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {

absl::Status CheckModelName(absl::string_view name) {
  constexpr std::size_t kMaxLength = 128;
  if (IsName(name, kMaxLength, "_-.")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model: \"", Printable(name, 32), "\"",
      name.size() > kMaxLength ? absl::StrCat(" (", name.size(), " bytes)") : "", ", wanted 1 to ",
      kMaxLength, " letters, digits, '_', '-' and '.', beginning with a letter or a digit"));
}

}  // namespace normd

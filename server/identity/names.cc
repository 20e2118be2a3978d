#include "server/identity/names.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {

absl::Status CheckIdentityName(absl::string_view name) {
  constexpr std::size_t kMaxBytes = 64;
  const auto is_letter_or_digit = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c));
  };
  const bool well_formed = !name.empty() && name.size() <= kMaxBytes &&
                           is_letter_or_digit(name.front()) &&
                           std::all_of(name.begin(), name.end(), [&](char c) {
                             return is_letter_or_digit(c) ||
                                    absl::string_view("_-.@").find(c) != absl::string_view::npos;
                           });
  if (well_formed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", Printable(name, 32),
      "\", wanted 1 to 64 letters, digits and any of _ - . @, beginning with a letter or a digit"));
}

}  // namespace normd

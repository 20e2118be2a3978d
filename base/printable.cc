#include "base/printable.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace normd {

bool IsName(absl::string_view text, std::size_t max_bytes, absl::string_view marks) {
  const auto is_plain = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); };
  return !text.empty() && text.size() <= max_bytes && is_plain(text.front()) &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return is_plain(c) || marks.find(c) != absl::string_view::npos;
         });
}

std::string Printable(absl::string_view text, std::size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const unsigned byte = static_cast<unsigned char>(c);
    switch (c) {
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      case '\\': out += "\\\\"; break;
      default:
        if (byte >= 0x20 && byte < 0x7f) {
          out += c;
        } else {
          out += "\\x";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        }
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace normd

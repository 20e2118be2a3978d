#include "base/nearest_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace normd {
namespace {

// How many letters have to come, go, change, or swap with the next to make the one of the other.
std::size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<std::size_t>> edits(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) edits[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) edits[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      edits[i][j] = std::min({changed, edits[i - 1][j] + 1, edits[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  }
  return edits.back().back();
}

std::string DigitsOf(absl::string_view name) {
  std::string digits;
  for (const char c : name) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) digits += c;
  }
  return digits;
}

}  // namespace

std::string FoldedName(absl::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c != '_') folded += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return folded;
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& names) {
  constexpr std::size_t kMaxNameBytes = 64;  // No name is longer.
  if (name.size() > kMaxNameBytes) return "";
  const std::string folded = FoldedName(name);
  std::string nearest;
  std::size_t fewest = std::min<std::size_t>(2, folded.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const std::string other = FoldedName(candidate);
    // No fewer edits than the lengths differ by.
    if (other.size() >= folded.size() + fewest || folded.size() >= other.size() + fewest) continue;
    if (DigitsOf(folded) != DigitsOf(other)) continue;
    const std::size_t edits = EditDistance(folded, other);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace normd

#include "server/identity/model_patterns.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::size_t kMaxNameBytes = 128;

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

}  // namespace

absl::Status ModelPatterns::Add(absl::string_view pattern) {
  absl::string_view name = pattern;
  const bool begins = absl::ConsumeSuffix(&name, "*");
  const bool well_formed = name.size() <= kMaxNameBytes && (begins || !name.empty()) &&
                           std::all_of(name.begin(), name.end(), IsNameCharacter);
  if (!well_formed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Printable(pattern, 32),
        "\", wanted a model's name, or how names begin and a * as the last character"));
  }
  if (!begins) {
    names_.emplace(name);
  } else if (name.empty()) {
    everything_ = true;
  } else {
    beginnings_.emplace(name);
    if (std::find(lengths_.begin(), lengths_.end(), name.size()) == lengths_.end()) {
      lengths_.push_back(name.size());
    }
  }
  return absl::OkStatus();
}

bool ModelPatterns::Contains(absl::string_view name) const {
  if (everything_ || names_.contains(name)) return true;
  return std::any_of(lengths_.begin(), lengths_.end(), [&](std::size_t length) {
    return length <= name.size() && beginnings_.contains(name.substr(0, length));
  });
}

}  // namespace normd

#include "server/identity/policy_text.h"

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/text_format/parse_text.h"

namespace normd {

absl::Status PolicyText::Parse(absl::string_view text) {
  return ParseText({v1::Policy::descriptor()}, text, policy_, &lines_);
}

std::string PolicyText::PlaceOfRole(int index) const {
  return Place("role", index, policy_.role(index).name());
}

std::string PolicyText::PlaceOfIdentity(int index) const {
  return Place("identity", index, policy_.identity(index).name());
}

std::string PolicyText::Place(const char* field, int index, absl::string_view name) const {
  const auto location = lines_.GetLocation(v1::Policy::descriptor()->FindFieldByName(field), index);
  return absl::StrCat("line ", location.line + 1, ": ", field, " \"", Printable(name, 64), "\"");
}

}  // namespace normd

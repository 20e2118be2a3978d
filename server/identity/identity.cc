#include "server/identity/identity.h"

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {

absl::string_view Name(Right right) {
  switch (right) {
    case Right::kHealth: return "health";
    case Right::kDescribe: return "describe";
    case Right::kInfer: return "infer";
    case Right::kObserve: return "observe";
    case Right::kAdmin: return "admin";
  }
  return "unknown";
}

bool Rights::Include(Right right) const {
  switch (right) {
    case Right::kHealth: return true;  // Every identity with a role.
    case Right::kDescribe: return observe || !infer.empty();
    case Right::kInfer: return !infer.empty();
    case Right::kObserve: return observe;
    case Right::kAdmin: return admin;
  }
  return false;
}

bool Rights::IncludeModel(Right right, absl::string_view model) const {
  if (right == Right::kDescribe && observe) return true;
  return std::any_of(infer.begin(), infer.end(),
                     [&](const auto& patterns) { return patterns->Contains(model); });
}

absl::Status CheckIdentityName(absl::string_view name) {
  if (IsName(name, 64, "_-.@")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", Printable(name, 32),
      "\", wanted 1 to 64 letters, digits and any of _ - . @, beginning with a letter or a digit"));
}

}  // namespace normd

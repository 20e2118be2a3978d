// What a mistyped name was meant to be.

#ifndef NORMD_BASE_NEAREST_NAME_H_
#define NORMD_BASE_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace normd {

// The one of `names` that equals `name` except for case, underscores, and at most two slips, fewer
// in a short one; empty when there is none. Names with other digits are other names.
std::string NearestName(absl::string_view name, const std::vector<std::string>& names);
// Lower case without underscores: "GroupNorm" and "group_norm" are equal.
std::string FoldedName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_BASE_NEAREST_NAME_H_

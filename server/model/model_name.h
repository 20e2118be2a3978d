// The valid names of models.

#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// Letters, digits, '_', '-' and '.', 1 to 128 of them, beginning with a letter or a digit: never a
// path. InvalidArgument otherwise; the message shows at most 32 characters, escaped.
absl::Status CheckModelName(absl::string_view name);

}  // namespace normd

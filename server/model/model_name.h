// The valid names of models.

#ifndef NORMD_SERVER_MODEL_MODEL_NAME_H_
#define NORMD_SERVER_MODEL_MODEL_NAME_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// Letters, digits, '_', '-' and '.', 1 to 128 of them, beginning with a letter or a digit: never a
// path. InvalidArgument otherwise; the message shows at most 32 characters, escaped.
absl::Status CheckModelName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_MODEL_NAME_H_

// The valid names of identities, roles and tokens.

#ifndef NORMD_SERVER_IDENTITY_NAMES_H_
#define NORMD_SERVER_IDENTITY_NAMES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// Letters, digits, '_', '-', '.' and '@', 1 to 64 of them, beginning with a letter or a digit: fit
// for logs and metric labels. InvalidArgument shows the name, escaped and at most 32 characters of
// it, and what was wanted.
absl::Status CheckIdentityName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_NAMES_H_

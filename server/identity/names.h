// Which names identities, roles and tokens may have.

#ifndef NORMD_SERVER_IDENTITY_NAMES_H_
#define NORMD_SERVER_IDENTITY_NAMES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// Letters, digits, '_', '-', '.' and '@', 1 to 64 of them, beginning with a letter or a digit: fit
// for logs and for the labels of metrics. InvalidArgument says what came, at most 32 characters of
// it and escaped, and what was wanted.
absl::Status CheckIdentityName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_NAMES_H_

// The version that programs print.

#ifndef NORMD_FLAGS_VERSION_H_
#define NORMD_FLAGS_VERSION_H_

#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// "normd 1.2.3 (0123456789ab)"; without the parentheses where the build did not know its commit.
std::string VersionText(absl::string_view program);

}  // namespace normd

#endif  // NORMD_FLAGS_VERSION_H_

#include "flags/version.h"

#include "absl/strings/str_cat.h"

namespace normd {

std::string VersionText(absl::string_view program) {
  constexpr absl::string_view kRevision = NORMD_REVISION;
  return absl::StrCat(program, " ", NORMD_VERSION,
                      kRevision.empty() ? "" : absl::StrCat(" (", kRevision, ")"));
}

}  // namespace normd

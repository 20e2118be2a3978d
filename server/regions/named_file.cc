#include "server/regions/named_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::size_t kMaxShown = 64;  // Bytes of a key that an error repeats.

absl::Status CheckKey(absl::string_view key, absl::string_view name) {
  const bool dots = name == "." || name == "..";
  const bool slash_or_nul = name.find('/') != name.npos || name.find('\0') != name.npos;
  if (!name.empty() && name.size() <= NAME_MAX && !dots && !slash_or_nul) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key: \"", Printable(key, kMaxShown),
                   "\", wanted the name of a shared memory object: from 1 to ", NAME_MAX,
                   " bytes, a slash at most in the first place, not . or .."));
}

}  // namespace

absl::StatusOr<SharedFile> OpenNamedFile(const std::string& folder, absl::string_view key,
                                         absl::string_view prefix) {
  const std::string name(absl::StripPrefix(key, "/"));
  if (absl::Status status = CheckKey(key, name); !status.ok()) return status;
  const absl::Status not_found =
      absl::NotFoundError(absl::StrCat("key: \"", Printable(key, kMaxShown),
                                       "\" is no shared memory object that this server may open",
                                       prefix.empty() ? "" : ", wanted a name that begins with \"",
                                       Printable(prefix, kMaxShown), prefix.empty() ? "" : "\""));
  if (!absl::StartsWith(name, prefix)) return not_found;
  const Descriptor root(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return not_found;
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  SharedFile file;
  file.descriptor.Reset(openat(root.get(), name.c_str(), O_RDWR | kFlags));
  file.writable = file.descriptor.valid();
  if (!file.writable && (errno == EACCES || errno == EPERM)) {
    file.descriptor.Reset(openat(root.get(), name.c_str(), O_RDONLY | kFlags));
  }
  if (!file.descriptor.valid()) {
    if (errno != EMFILE && errno != ENFILE) return not_found;
    return absl::ResourceExhaustedError("key: the server has no descriptor left to open it");
  }
  struct stat facts = {};
  if (fstat(file.descriptor.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return not_found;
  return file;
}

}  // namespace normd

// Small files that decide rights, and detection of their changes.

#ifndef NORMD_SERVER_IDENTITY_PRIVATE_FILE_H_
#define NORMD_SERVER_IDENTITY_PRIVATE_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace normd {

// What other users of the machine must not be able to do with the file.
enum class Guarded {
  kFromWriters,  // Write it: it decides rights, but has no secrets.
  kFromReaders,  // Write it or read it.
};

struct PrivateFile {
  std::string text;
  FileState version;
  // The file was written so recently that a further write may leave the same version: read it again
  // soon.
  bool young = false;
};

// Follows links. Errors name the path, the problem and what was wanted: NotFound and
// PermissionDenied from the system; InvalidArgument for anything but a regular file, for one over
// 4 MiB, and for a mode that allows everybody what `guarded` excludes; Aborted for a file that
// changes while it is read. Does not wait for a FIFO.
absl::StatusOr<PrivateFile> ReadPrivateFile(const std::string& path, Guarded guarded);

// The version of the file at the path now; errors as above.
absl::StatusOr<FileState> VersionOfFile(const std::string& path);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_PRIVATE_FILE_H_

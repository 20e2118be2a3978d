// The folder that holds the model repository.

#ifndef NORMD_SERVER_MODEL_ROOT_FOLDER_H_
#define NORMD_SERVER_MODEL_ROOT_FOLDER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"

namespace normd {

// A folder whose files are read without ever leaving it: symbolic links are followed if they are
// relative and stay below it; one that leads out, and any absolute one, is InvalidArgument. The
// kernel follows no link itself, so that a checked path cannot be exchanged for another. The
// folder's own path may be a link. Paths are relative and '/'-separated; errors only name their
// last part. Thread-safe.
class RootFolder {
 public:
  // NotFound when it is not a folder that can be read.
  static absl::StatusOr<RootFolder> Open(const std::string& path);

  // NotFound when there is none; InvalidArgument for anything but a regular file, which is never
  // opened (a FIFO would wait, a device might act); FailedPrecondition over `max_bytes`.
  absl::StatusOr<InputFile> OpenFile(absl::string_view path, std::int64_t max_bytes) const;

  // The state of the file that OpenFile would open now.
  absl::StatusOr<FileState> StateOf(absl::string_view path) const;

  // OK for a folder; NotFound when there is none; InvalidArgument when a link leads out.
  absl::Status CheckFolder(absl::string_view path) const;

  // The file system of the folder itself; 0 if unknown.
  std::uint64_t device() const;

  // The names of the folders in the folder at `path`, and of links that may lead to one. Not
  // sorted.
  absl::StatusOr<std::vector<std::string>> ListFolders(absl::string_view path) const;

 private:
  explicit RootFolder(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_ROOT_FOLDER_H_

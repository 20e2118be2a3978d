// Files that somebody else may have written badly, or may be writing now.

#ifndef NORMD_SERVER_MODEL_FILE_H_
#define NORMD_SERVER_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace normd {

// A regular file open for reading. Reads go through pread and not through a mapping, so that a file
// that shrinks meanwhile gives an error and not a SIGBUS. Errors name the file without its folder:
// they reach clients. Move-only; thread-safe.
class InputFile {
 public:
  // NotFound when there is none, InvalidArgument for anything but a regular file (never waits for a
  // FIFO's writer), FailedPrecondition when it is larger than `max_bytes`; otherwise the system's
  // reason.
  static absl::StatusOr<InputFile> Open(const std::string& path, std::int64_t max_bytes);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& name() const { return name_; }        // Without its folder, printable.
  std::int64_t size_bytes() const { return size_bytes_; }  // When it was opened.

  // Fills `out` from `offset`. InvalidArgument when the file ends before.
  absl::Status Read(std::int64_t offset, absl::Span<std::byte> out) const;

 private:
  InputFile(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}

  std::string name_;
  int fd_ = -1;
  std::int64_t size_bytes_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_FILE_H_

// Files that may be malformed, half written, or links that lead elsewhere.

#ifndef NORMD_BASE_FILE_H_
#define NORMD_BASE_FILE_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/descriptor.h"

namespace normd {

// Identifies a file's content, as far as the file system can.
struct FileState {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;  // Since 1970, here and below.
  std::int64_t ctime_ns = 0;

  friend bool operator==(const FileState&, const FileState&) = default;
};

FileState StateFrom(const struct stat& info);

// The longest time after a write in which another one may leave the same times: one tick of the
// kernel's clock, or 2 s on a file system with whole seconds.
std::int64_t TimestampTickNs(const FileState& state);

// A regular file open for reading. Reads use pread and not a mapping, so that a file that shrinks
// meanwhile gives an error and not a SIGBUS. Errors name the file without its folder, because they
// reach clients. Move-only; not thread-safe.
class InputFile {
 public:
  // Takes over a descriptor open for reading. InvalidArgument for anything but a regular file,
  // FailedPrecondition when it is larger than `max_bytes`.
  static absl::StatusOr<InputFile> Adopt(std::string name, Descriptor descriptor,
                                         std::int64_t max_bytes);

  const std::string& name() const { return name_; }              // Printable.
  const FileState& state() const { return state_; }              // When it was opened.
  std::int64_t size_bytes() const { return state_.size_bytes; }  // Likewise.

  // Fills `out` from `offset`. InvalidArgument when the file ends before.
  absl::Status Read(std::int64_t offset, absl::Span<std::byte> out);

  // Aborted when the file has changed since it was opened, so that the read bytes may be a mixture.
  // If the last write was so recent that the file's times may hide another one, waits for the tick
  // to pass, at most 2 s, and compares all read bytes with the file once more.
  absl::Status CheckUnchanged();

 private:
  struct Extent {
    std::int64_t offset;
    std::size_t bytes;
    std::size_t hash;
  };

  InputFile(std::string name, Descriptor descriptor)
      : name_(std::move(name)), descriptor_(std::move(descriptor)) {}

  absl::Status ReadOnce(std::int64_t offset, absl::Span<std::byte> out) const;
  absl::Status CompareAgain() const;

  std::string name_;
  Descriptor descriptor_;
  FileState state_;
  bool young_ = false;           // A further write may leave the same times.
  std::vector<Extent> extents_;  // The extents read from a young file.
};

// All bytes of the file, which may be a pipe; nullopt when it cannot be read, as a folder cannot.
std::optional<std::string> ReadWhole(const std::string& path);

}  // namespace normd

#endif  // NORMD_BASE_FILE_H_

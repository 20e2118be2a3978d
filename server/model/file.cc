#include "server/model/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/printable.h"

namespace normd {

absl::StatusOr<InputFile> InputFile::Open(const std::string& path, std::int64_t max_bytes) {
  std::string name = Printable(path.substr(path.rfind('/') + 1));
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(name, ": no such file"));
    return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot open"));
  }
  InputFile file(std::move(name), fd);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(file.name_, ": cannot stat"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file.name_, ": not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.name_, ": ", info.st_size, " bytes, wanted at most ", max_bytes));
  }
  file.size_bytes_ = info.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::Read(std::int64_t offset, absl::Span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(fd_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name_, ": cannot read"));
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": ends at byte ", offset, ", although it was opened with ", size_bytes_));
    }
    out.remove_prefix(static_cast<std::size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

}  // namespace normd

#include "server/identity/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/descriptor.h"

namespace normd {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{4} << 20;
// For a file system with whole seconds, plus one second.
constexpr std::int64_t kYoungNs = 2'000'000'000;

absl::Status Failed(const std::string& path, int error) { return absl::ErrnoToStatus(error, path); }

absl::Status CheckKind(const std::string& path, const struct stat& info, Guarded guarded) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": wanted a regular file"));
  }
  if (info.st_size > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes, wanted at most ", kMaxBytes));
  }
  const bool secret = guarded == Guarded::kFromReaders;
  const mode_t excluded = secret ? S_IROTH | S_IWOTH : S_IWOTH;
  if ((info.st_mode & excluded) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: mode %04o lets every user of the machine %s it, wanted %s", path, info.st_mode & 07777,
      secret && (info.st_mode & S_IROTH) != 0 ? "read" : "write",
      secret ? "0640 or less" : "0644 or less"));
}

}  // namespace

absl::StatusOr<PrivateFile> ReadPrivateFile(const std::string& path, Guarded guarded) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return Failed(path, errno);
  if (absl::Status status = CheckKind(path, info, guarded); !status.ok()) return status;
  PrivateFile read;
  read.version = StateFrom(info);
  // One byte more than its size, so that growth of the file is noticed.
  read.text.resize(static_cast<std::size_t>(info.st_size) + 1);
  std::size_t size = 0;
  while (size < read.text.size()) {
    const ssize_t count = ::read(file.get(), read.text.data() + size, read.text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (fstat(file.get(), &info) != 0) return Failed(path, errno);
  if (!(StateFrom(info) == read.version) || size + 1 != read.text.size()) {
    return absl::AbortedError(absl::StrCat(path, ": changes while it is read"));
  }
  read.text.resize(size);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t now_ns = std::chrono::nanoseconds(now).count();
  read.young = now_ns - std::max(read.version.mtime_ns, read.version.ctime_ns) < kYoungNs;
  return read;
}

absl::StatusOr<FileState> VersionOfFile(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Failed(path, errno);
  return StateFrom(info);
}

}  // namespace normd

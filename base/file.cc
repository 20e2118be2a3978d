#include "base/file.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

std::int64_t Nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * kSecondNs + time.tv_nsec;
}

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return Nanoseconds(now);
}

std::size_t HashOf(absl::Span<const std::byte> bytes) {
  return absl::HashOf(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::Status Changed(absl::string_view name) {
  return absl::AbortedError(absl::StrCat(name, ": changed while it was read"));
}

}  // namespace

FileState StateFrom(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, Nanoseconds(info.st_mtim),
          Nanoseconds(info.st_ctim)};
}

std::int64_t TimestampTickNs(const FileState& state) {
  // Kernels count 100 to 1000 ticks a second. A change time of a whole second is one in 10^9 with
  // nanoseconds, and costs such a file a wait.
  return state.ctime_ns % kSecondNs == 0 ? 2 * kSecondNs : kSecondNs / 100;
}

absl::StatusOr<InputFile> InputFile::Adopt(std::string name, Descriptor descriptor,
                                           std::int64_t max_bytes) {
  InputFile file(Printable(name), std::move(descriptor));
  struct stat info {};
  if (fstat(file.descriptor_.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(file.name_, ": cannot stat"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file.name_, ": not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.name_, ": ", info.st_size, " bytes, wanted at most ", max_bytes));
  }
  file.state_ = StateFrom(info);
  // The change time, which nobody can set. One in the future comes from another machine's clock, so
  // the file's age is unknown.
  file.young_ = NowNs() - file.state_.ctime_ns <= TimestampTickNs(file.state_);
  return file;
}

absl::Status InputFile::ReadOnce(std::int64_t offset, absl::Span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name_, ": cannot read"));
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": ends at byte ", offset, ", although it was opened with ", size_bytes()));
    }
    out.remove_prefix(static_cast<std::size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status InputFile::Read(std::int64_t offset, absl::Span<std::byte> out) {
  if (absl::Status status = ReadOnce(offset, out); !status.ok()) return status;
  if (!young_) return absl::OkStatus();
  // In the blocks in which they will be compared, so that the whole is not in memory twice.
  constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  for (; !out.empty(); out.remove_prefix(std::min(out.size(), kBlockBytes))) {
    const absl::Span<const std::byte> block = out.first(std::min(out.size(), kBlockBytes));
    extents_.push_back({offset, block.size(), HashOf(block)});
    offset += static_cast<std::int64_t>(block.size());
  }
  return absl::OkStatus();
}

absl::Status InputFile::CompareAgain() const {
  const std::int64_t tick_ns = TimestampTickNs(state_);
  const std::int64_t left_ns = state_.ctime_ns + tick_ns - NowNs();
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(std::clamp<std::int64_t>(left_ns, 0, tick_ns)));
  std::vector<std::byte> again;
  for (const Extent& extent : extents_) {
    again.resize(extent.bytes);
    const absl::Status status = ReadOnce(extent.offset, absl::MakeSpan(again));
    if (!status.ok() || HashOf(again) != extent.hash) return Changed(name_);
  }
  return absl::OkStatus();
}

absl::Status InputFile::CheckUnchanged() {
  if (young_) {
    if (absl::Status status = CompareAgain(); !status.ok()) return status;
  }
  struct stat info {};
  if (fstat(descriptor_.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(name_, ": cannot stat"));
  }
  return StateFrom(info) == state_ ? absl::OkStatus() : Changed(name_);
}

std::optional<std::string> ReadWhole(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 1 << 14> block;
  for (;;) {
    const ssize_t got = read(file.get(), block.data(), block.size());
    if (got == 0) return text;
    if (got > 0) {
      text.append(block.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

}  // namespace normd

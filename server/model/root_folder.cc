#include "server/model/root_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/printable.h"

namespace normd {
namespace {

// The kernel's limit of links in one path.
constexpr int kMaxLinks = 40;
// Each folder on the way takes a descriptor. A repository has three levels, and links add few.
constexpr std::size_t kMaxDepth = 64;

std::string NameOf(absl::string_view path) {
  const std::size_t slash = path.rfind('/');
  return Printable(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

// The end of a path: an entry of a folder that is not a link, or (an empty entry) the folder
// itself.
struct PathEnd {
  int folder = -1;  // One of the walk's own descriptors, or the root's.
  std::string entry;
  struct stat info {};
};

// Follows a path one entry at a time, from one open folder to the next, and reads links itself.
// ".." returns to the folder that it came from and never asks the kernel for a parent, which a
// rename could have changed.
class PathWalk {
 public:
  PathWalk(int root, absl::string_view path) : root_(root), name_(NameOf(path)) { Push(path); }

  absl::StatusOr<PathEnd> Run() {
    while (!ahead_.empty()) {
      const std::string entry = std::move(ahead_.back());
      ahead_.pop_back();
      if (entry.empty() || entry == ".") continue;
      if (entry == "..") {
        if (folders_.empty()) return LeadsOut();
        folders_.pop_back();
        continue;
      }
      struct stat info {};
      if (fstatat(Here(), entry.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return Failed(errno);
      absl::Status status;
      if (S_ISLNK(info.st_mode)) {
        status = FollowLink(entry);
      } else if (S_ISDIR(info.st_mode)) {
        status = Enter(entry);
      } else if (ahead_.empty()) {
        return PathEnd{Here(), entry, info};
      } else {
        return Failed(ENOTDIR);
      }
      if (!status.ok()) return status;
    }
    PathEnd end{Here(), "", {}};
    if (fstat(Here(), &end.info) != 0) return Failed(errno);
    return end;
  }

 private:
  int Here() const { return folders_.empty() ? root_ : folders_.back().get(); }

  void Push(absl::string_view path) {
    const std::vector<std::string> entries = absl::StrSplit(path, '/');
    ahead_.insert(ahead_.end(), entries.rbegin(), entries.rend());
  }

  absl::Status Enter(const std::string& entry) {
    if (folders_.size() == kMaxDepth) return Failed(ENAMETOOLONG);
    Descriptor folder(openat(Here(), entry.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder.get() < 0) return Failed(errno);
    folders_.push_back(std::move(folder));
    return absl::OkStatus();
  }

  absl::Status FollowLink(const std::string& entry) {
    if (++links_ > kMaxLinks) return Failed(ELOOP);
    std::array<char, PATH_MAX> target;
    const ssize_t length = readlinkat(Here(), entry.c_str(), target.data(), target.size());
    if (length < 0) return Failed(errno);
    if (static_cast<std::size_t>(length) == target.size()) return Failed(ENAMETOOLONG);
    const absl::string_view path(target.data(), static_cast<std::size_t>(length));
    if (!path.empty() && path.front() == '/') return LeadsOut();
    Push(path);
    return absl::OkStatus();
  }

  absl::Status LeadsOut() const {
    return absl::InvalidArgumentError(
        absl::StrCat(name_,
                     ": a symbolic link on its path leads out of the model repository, "
                     "wanted relative links that stay inside"));
  }
  absl::Status Failed(int error) const {
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat(name_, ": no such file"));
    return absl::ErrnoToStatus(error, absl::StrCat(name_, ": cannot open"));
  }

  const int root_;
  const std::string name_;
  std::vector<Descriptor> folders_;  // Below the root, down to where the walk is.
  std::vector<std::string> ahead_;   // The entries to come, the next one last.
  int links_ = 0;
};

// An entry's name and type, DT_UNKNOWN if the file system does not report it.
struct Entry {
  std::string name;
  unsigned char type;
};

std::optional<std::vector<Entry>> ListEntries(int folder) {
  // Not O_PATH, and a file position of its own.
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct Close {
    void operator()(DIR* dir) const { closedir(dir); }
  };
  const std::unique_ptr<DIR, Close> dir(fdopendir(fd));
  if (dir == nullptr) {
    close(fd);
    return std::nullopt;
  }
  std::vector<Entry> entries;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(dir.get());
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({std::string(name), entry->d_type});
  }
  if (errno != 0) return std::nullopt;
  return entries;
}

}  // namespace

absl::StatusOr<RootFolder> RootFolder::Open(const std::string& path) {
  Descriptor folder(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) {
    const int error = errno;
    const absl::Status status = absl::ErrnoToStatus(
        error, absl::StrCat("model repository: \"", Printable(path), "\" cannot be listed"));
    return error == ENOTDIR ? absl::NotFoundError(status.message()) : status;
  }
  return RootFolder(std::move(folder));
}

absl::StatusOr<InputFile> RootFolder::OpenFile(absl::string_view path,
                                               std::int64_t max_bytes) const {
  PathWalk walk(descriptor_.get(), path);
  const absl::StatusOr<PathEnd> end = walk.Run();
  if (!end.ok()) return end.status();
  if (!S_ISREG(end->info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(NameOf(path), ": not a regular file"));
  }
  // It may be something else by now: a link is refused, a FIFO does not wait, and Adopt checks what
  // was really opened.
  Descriptor file(openat(end->folder, end->entry.c_str(),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (file.get() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(NameOf(path), ": cannot open"));
  }
  return InputFile::Adopt(NameOf(path), std::move(file), max_bytes);
}

absl::StatusOr<FileState> RootFolder::StateOf(absl::string_view path) const {
  PathWalk walk(descriptor_.get(), path);
  const absl::StatusOr<PathEnd> end = walk.Run();
  if (!end.ok()) return end.status();
  return StateFrom(end->info);
}

absl::Status RootFolder::CheckFolder(absl::string_view path) const {
  PathWalk walk(descriptor_.get(), path);
  const absl::StatusOr<PathEnd> end = walk.Run();
  if (!end.ok()) return end.status();
  if (S_ISDIR(end->info.st_mode)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(NameOf(path), ": not a folder"));
}

std::uint64_t RootFolder::device() const {
  struct stat info {};
  return fstat(descriptor_.get(), &info) == 0 ? StateFrom(info).device : 0;
}

absl::StatusOr<std::vector<std::string>> RootFolder::ListFolders(absl::string_view path) const {
  PathWalk walk(descriptor_.get(), path);
  const absl::StatusOr<PathEnd> end = walk.Run();
  if (!end.ok()) return end.status();
  if (!S_ISDIR(end->info.st_mode)) {
    return absl::NotFoundError(absl::StrCat(NameOf(path), ": not a folder"));
  }
  const std::optional<std::vector<Entry>> entries = ListEntries(end->folder);
  if (!entries) {
    return absl::ErrnoToStatus(errno, absl::StrCat(NameOf(path), ": cannot be listed"));
  }
  std::vector<std::string> folders;
  for (const Entry& entry : *entries) {
    bool wanted = entry.type == DT_DIR;
    if (entry.type == DT_LNK || entry.type == DT_UNKNOWN) {
      const absl::Status status =
          CheckFolder(path.empty() ? entry.name : absl::StrCat(path, "/", entry.name));
      wanted = status.ok() || absl::IsInvalidArgument(status);
    }
    if (wanted) folders.push_back(entry.name);
  }
  return folders;
}

}  // namespace normd

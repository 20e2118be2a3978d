#include "server/net/process_limits.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace normd {
namespace {

// The number of KiB after `key` in /proc/self/status.
std::int64_t StatusBytes(absl::string_view key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    std::int64_t kib = 0;
    absl::ConsumeSuffix(&rest, "kB");
    return absl::SimpleAtoi(rest, &kib) ? kib << 10 : 0;
  }
  return 0;
}

std::int64_t LeftOf(decltype(RLIMIT_AS) resource, absl::string_view used) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoMemoryLimit;
  return std::max<std::int64_t>(static_cast<std::int64_t>(limit.rlim_cur) - StatusBytes(used), 0);
}

// What the file of a group has, and whether it is there.
bool ReadLine(const std::string& path, std::string& line) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, line));
}

// False where the file is missing or says "max".
bool ReadNumber(const std::string& path, std::int64_t& value) {
  std::string line;
  return ReadLine(path, line) && absl::SimpleAtoi(line, &value);
}

// Calls `look` with the folder of each group of version 2 (`is_v2`), or of `controller` in version
// 1, that the process is in, and of those above it: each bounds all below.
void ForEachGroup(const std::string& root, absl::string_view controller,
                  absl::FunctionRef<void(const std::string& folder, bool is_v2)> look) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // hierarchy:controllers:path
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool is_v2 = parts[1].empty();
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const auto found = std::find(controllers.begin(), controllers.end(), controller);
    if (!is_v2 && found == controllers.end()) continue;
    // In a container the path may be that of the host; its root is then the container's group.
    const std::string mount =
        absl::StrCat(root, "/sys/fs/cgroup", is_v2 ? "" : absl::StrCat("/", controller));
    std::string group = parts[2];
    for (;;) {
      look(absl::StrCat(mount, group, "/"), is_v2);
      const std::size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.resize(slash);
    }
  }
}

std::int64_t LeftOfControlGroups() {
  std::int64_t left = kNoMemoryLimit;
  ForEachGroup("", "memory", [&left](const std::string& folder, bool is_v2) {
    std::int64_t limit = 0;
    std::int64_t used = 0;
    if (ReadNumber(folder + (is_v2 ? "memory.max" : "memory.limit_in_bytes"), limit) &&
        ReadNumber(folder + (is_v2 ? "memory.current" : "memory.usage_in_bytes"), used)) {
      left = std::min(left, std::max<std::int64_t>(limit - used, 0));
    }
  });
  // Version 1 says "none" by a number near 2^63.
  constexpr std::int64_t kMeaningless = std::int64_t{1} << 60;
  return left >= kMeaningless ? kNoMemoryLimit : left;
}

}  // namespace

std::int64_t RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return sysconf(_SC_OPEN_MAX);
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = raised.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  constexpr rlim_t kMany = rlim_t{1} << 30;
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kMany));
}

std::int64_t OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  std::int64_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder itself.
}

absl::Status CheckDescriptorsLeft(std::int64_t wanted) {
  const std::int64_t left = RaiseDescriptorLimit() - OpenDescriptors();
  if (left >= wanted) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("descriptors: ", left, " are left (RLIMIT_NOFILE), wanted at least ", wanted));
}

Descriptor Opened(int fd) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "descriptor");
  return Descriptor(fd);
}

std::int64_t MappingsLeft() {
  std::int64_t limit = 65530;  // Linux's default.
  ReadNumber("/proc/sys/vm/max_map_count", limit);
  std::ifstream maps("/proc/self/maps");
  const auto used = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  return std::max<std::int64_t>(limit - used, 0);
}

std::int64_t MemoryLeft() {
  return std::min(
      {LeftOf(RLIMIT_AS, "VmSize:"), LeftOf(RLIMIT_DATA, "VmData:"), LeftOfControlGroups()});
}

int CoresOfControlGroups(const std::string& root) {
  std::int64_t cores = 0;
  ForEachGroup(root, "cpu", [&cores](const std::string& folder, bool is_v2) {
    std::int64_t quota = 0;  // Microseconds in each period; below 0, or "max": no limit.
    std::int64_t period = 0;
    if (is_v2) {
      std::string line;
      if (!ReadLine(folder + "cpu.max", line)) return;
      const std::pair<absl::string_view, absl::string_view> both = absl::StrSplit(line, ' ');
      if (!absl::SimpleAtoi(both.first, &quota) || !absl::SimpleAtoi(both.second, &period)) return;
    } else if (!ReadNumber(folder + "cpu.cfs_quota_us", quota) ||
               !ReadNumber(folder + "cpu.cfs_period_us", period)) {
      return;
    }
    if (quota <= 0 || period <= 0) return;
    const std::int64_t allowed = (quota + period - 1) / period;
    cores = cores == 0 ? allowed : std::min(cores, allowed);
  });
  return static_cast<int>(std::min<std::int64_t>(cores, std::numeric_limits<int>::max()));
}

std::int64_t SetLittleAside() {
  // Each heap beside the first sets 64 MiB aside, each stack 8 MiB, by glibc's defaults.
  constexpr std::int64_t kStackBytes = std::int64_t{1} << 20;
  constexpr std::int64_t kThreads = 24;
  constexpr std::int64_t kThreadsOfACore = 8;
  // Below, more heaps would take from the budgets; one costs time.
  constexpr std::int64_t kAmple = std::int64_t{4} << 30;
  const std::int64_t left = std::min(LeftOf(RLIMIT_AS, "VmSize:"), LeftOf(RLIMIT_DATA, "VmData:"));
  if (left == kNoMemoryLimit) return 0;
  if (left < kAmple) mallopt(M_ARENA_MAX, 1);
  pthread_attr_t attributes;
  pthread_getattr_default_np(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  return kStackBytes * (kThreads + kThreadsOfACore * std::thread::hardware_concurrency());
}

std::int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace normd

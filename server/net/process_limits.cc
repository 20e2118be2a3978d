#include "server/net/process_limits.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

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

// False where the file is missing or says "max".
bool ReadNumber(const std::string& path, std::int64_t& value) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) && absl::SimpleAtoi(line, &value);
}

// The least that is left of a group's limit and of those above it: each bounds all below.
std::int64_t LeftOfGroups(const std::string& root, std::string group, const char* limit_file,
                          const char* used_file) {
  std::int64_t left = kNoMemoryLimit;
  for (;;) {
    std::int64_t limit = 0;
    std::int64_t used = 0;
    if (ReadNumber(absl::StrCat(root, group, "/", limit_file), limit) &&
        ReadNumber(absl::StrCat(root, group, "/", used_file), used)) {
      left = std::min(left, std::max<std::int64_t>(limit - used, 0));
    }
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return left;
    group.resize(slash);
  }
}

std::int64_t LeftOfControlGroups() {
  std::ifstream groups("/proc/self/cgroup");
  std::int64_t left = kNoMemoryLimit;
  std::string line;
  while (std::getline(groups, line)) {
    // hierarchy:controllers:path
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    // In a container the path may be that of the host; its root is then the container's group.
    if (parts[1].empty()) {
      left =
          std::min(left, LeftOfGroups("/sys/fs/cgroup", parts[2], "memory.max", "memory.current"));
    } else if (absl::StrContains(absl::StrCat(",", parts[1], ","), ",memory,")) {
      left = std::min(left, LeftOfGroups("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes",
                                         "memory.usage_in_bytes"));
    }
  }
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

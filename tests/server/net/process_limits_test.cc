#include "server/net/process_limits.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace normd {
namespace {

TEST(ProcessLimitsTest, MappingsThatAreThereAreNotLeft) {
  constexpr std::int64_t kPages = 1000;
  constexpr std::size_t kPage = 4096;
  const std::int64_t before = MappingsLeft();
  EXPECT_GT(before, kPages);
  void* const at =
      mmap(nullptr, kPages * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  // Neighbours with other rights are mappings of their own.
  for (std::int64_t i = 0; i < kPages; i += 2) {
    ASSERT_EQ(mprotect(static_cast<char*>(at) + i * kPage, kPage, PROT_READ), 0);
  }
  EXPECT_NEAR(static_cast<double>(before - MappingsLeft()), kPages, 20);
  munmap(at, kPages * kPage);
}

// What /proc and /sys hold of control groups.
class FakeRoot {
 public:
  FakeRoot() {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }

 private:
  std::string path_ = ::testing::TempDir() + "/normd_groups_XXXXXX";
};

TEST(ProcessLimitsTest, TheCoresOfAGroupAreThoseOfItsQuotaRoundedUp) {
  for (const auto& [quota, cores] : std::vector<std::pair<std::string, int>>{{"max 100000", 0},
                                                                             {"100000 100000", 1},
                                                                             {"50000 100000", 1},
                                                                             {"250000 100000", 3},
                                                                             {"nonsense", 0},
                                                                             {"", 0}}) {
    const FakeRoot root;
    root.Write("/proc/self/cgroup", "0::/a/b\n");
    root.Write("/sys/fs/cgroup/a/b/cpu.max", quota + "\n");
    EXPECT_EQ(CoresOfControlGroups(root.path()), cores) << quota;
    // A group above it bounds it too, in a container the one at the root.
    root.Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    EXPECT_EQ(CoresOfControlGroups(root.path()), cores == 1 ? 1 : 2) << quota;
  }
}

TEST(ProcessLimitsTest, GroupsOfVersion1HaveCoresToo) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 0);
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 0);
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 2);
}

}  // namespace
}  // namespace normd

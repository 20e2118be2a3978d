#include "server/net/process_limits.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/net/connection_policy.h"
#include "server/net/heap_trim.h"
#include "tests/support/temp_folder.h"

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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

TEST(ProcessLimitsTest, DescriptorsThatAreOpenAreNotLeft) {
  const std::int64_t left = RaiseDescriptorLimit() - OpenDescriptors();
  EXPECT_TRUE(CheckDescriptorsLeft(left).ok());
  const Descriptor one = Opened(dup(STDERR_FILENO));
  EXPECT_EQ(
      CheckDescriptorsLeft(left).message(),
      absl::StrCat("descriptors: ", left - 1, " are left (RLIMIT_NOFILE), wanted at least ", left));
}

TEST(ProcessLimitsTest, TheCoresOfAGroupAreThoseOfItsQuotaRoundedUp) {
  for (const auto& [quota, cores] : std::vector<std::pair<std::string, int>>{{"max 100000", 0},
                                                                             {"100000 100000", 1},
                                                                             {"50000 100000", 1},
                                                                             {"250000 100000", 3},
                                                                             {"nonsense", 0},
                                                                             {"", 0}}) {
    const testing::TempFolder root;  // With what /proc and /sys hold of control groups.
    root.Write("/proc/self/cgroup", "0::/a/b\n");
    root.Write("/sys/fs/cgroup/a/b/cpu.max", quota + "\n");
    EXPECT_EQ(CoresOfControlGroups(root.path()), cores) << quota;
    // A group above it bounds it too, in a container the one at the root.
    root.Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    EXPECT_EQ(CoresOfControlGroups(root.path()), cores == 1 ? 1 : 2) << quota;
  }
}

TEST(ProcessLimitsTest, GroupsOfVersion1HaveCoresToo) {
  const testing::TempFolder root;  // With what /proc and /sys hold of control groups.
  root.Write("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 0);
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 0);
  root.Write("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(CoresOfControlGroups(root.path()), 2);
}

constexpr TimePoint kStart = TimePoint(seconds(1000));
constexpr std::int64_t kMuch = 1 << 20;

TEST(HeapTrimTest, LooksSoonAfterAnEndAndAgainForAMinute) {
  HeapTrim trim;
  EXPECT_FALSE(trim.waits());
  trim.OnEnd(1000, kStart);
  EXPECT_FALSE(trim.waits()) << "a connection that has received little";
  trim.OnEnd(kMuch, kStart);
  EXPECT_FALSE(trim.Check(kStart + milliseconds(900)));
  for (const int second : {1, 11, 21, 31, 41, 51}) {
    EXPECT_TRUE(trim.waits());
    EXPECT_TRUE(trim.Check(kStart + seconds(second)));
    EXPECT_FALSE(trim.Check(kStart + seconds(second) + milliseconds(9900)));
  }
  EXPECT_FALSE(trim.waits());
}

TEST(HeapTrimTest, ManyEndsAreOneLookInTenSecondsAndTheLastOneHasItsMinute) {
  HeapTrim trim;
  int looks = 0;
  TimePoint now = kStart;
  for (; now < kStart + seconds(100); now += milliseconds(100)) {
    trim.OnEnd(kMuch, now);
    looks += trim.Check(now);
  }
  EXPECT_GE(looks, 9);
  EXPECT_LE(looks, 11);
  EXPECT_TRUE(trim.Check(now + seconds(11)));
  EXPECT_TRUE(trim.Check(now + seconds(50)));
  EXPECT_FALSE(trim.waits());
}

TEST(HeapTrimTest, AnEndAfterAllLooksBeginsThemAnew) {
  HeapTrim trim;
  trim.OnEnd(kMuch, kStart);
  for (int second = 1; second < 70; ++second) trim.Check(kStart + seconds(second));
  ASSERT_FALSE(trim.waits());
  trim.OnEnd(kMuch, kStart + seconds(100));
  EXPECT_TRUE(trim.Check(kStart + seconds(101)));
  EXPECT_TRUE(trim.waits());
}

TEST(ConnectionPolicyTest, LimitsFitTheDescriptorsThatAreLeft) {
  for (const std::int64_t descriptors : {8, 64, 256, 1024, 4096, 1 << 20}) {
    for (const std::int64_t open : {10, 30, 200}) {
      for (const std::int64_t wanted : {0, 1, 100, 1 << 20}) {
        const ConnectionLimits limits = DecideLimits(wanted, 0, descriptors, open);
        EXPECT_GE(limits.connections, 1);
        EXPECT_GE(limits.peer_connections, 1);
        EXPECT_LE(limits.peer_connections, limits.connections);
        if (wanted > 0) {
          EXPECT_LE(limits.connections, wanted);
        }
        if (limits.connections > 1) {
          EXPECT_LE(limits.connections * kDescriptorsPerConnection + open, descriptors)
              << descriptors << " " << open << " " << wanted;
        }
      }
    }
  }
}

TEST(ConnectionPolicyTest, TakesWhatIsWantedWhereDescriptorsAreEnough) {
  const ConnectionLimits limits = DecideLimits(500, 20, 4096, 30);
  EXPECT_EQ(limits.connections, 500);
  EXPECT_EQ(limits.peer_connections, 20);
}

TEST(ConnectionPolicyTest, OnePeerLeavesAQuarterToOthers) {
  const ConnectionLimits limits = DecideLimits(100, 0, 4096, 30);
  EXPECT_EQ(limits.peer_connections, 75);
}

TEST(ConnectionPolicyTest, TakesUpToEachLimitAndNoFurther) {
  const ConnectionLimits limits{10, 4};
  EXPECT_EQ(DecideTaking(limits, 9, 3), Taking::kTake);
  EXPECT_EQ(DecideTaking(limits, 10, 0), Taking::kFull);
  EXPECT_EQ(DecideTaking(limits, 9, 4), Taking::kPeerFull);
  EXPECT_EQ(DecideTaking(limits, 10, 4), Taking::kFull);
}

TEST(ConnectionPolicyTest, RoomComesBackOnlyBelowNineTenths) {
  const ConnectionLimits limits{100, 75};
  EXPECT_TRUE(DecideRoom(limits, 99, true));
  EXPECT_FALSE(DecideRoom(limits, 100, true));
  EXPECT_FALSE(DecideRoom(limits, 99, false));
  EXPECT_FALSE(DecideRoom(limits, 90, false));
  EXPECT_TRUE(DecideRoom(limits, 89, false));
}

TEST(ConnectionPolicyTest, ASingleConnectionsRoomComesBack) {
  EXPECT_FALSE(DecideRoom({1, 1}, 1, true));
  EXPECT_TRUE(DecideRoom({1, 1}, 0, false));
}

}  // namespace
}  // namespace normd

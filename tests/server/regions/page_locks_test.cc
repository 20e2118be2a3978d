#include "server/regions/page_locks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/regions/region_registry.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/server/regions/shared_file.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_page_locker.h"
#include "tests/support/metric_value.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

// The process's mappings of the file.
int MappingsOf(const SharedFile& file) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += absl::StrContains(line, file.key());
  return count;
}

// Sees when the last region has gone: what Region::Keep keeps.
class Ending {
 public:
  std::shared_ptr<void> kept() {
    return std::shared_ptr<void>(this, [](void* ending) { static_cast<Ending*>(ending)->End(); });
  }
  bool ended() {
    MutexLock lock(mutex_);
    return ended_;
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
  }

 private:
  void End() {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.SignalAll();
  }
  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// What is logged while it lives.
class LogLines {
 public:
  LogLines() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(sink)));
  }
  ~LogLines() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }
  std::int64_t count() const {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

class PageLocksTest : public ::testing::Test {
 protected:
  absl::Status Register(const std::string& name, std::int64_t bytes = kPage,
                        const std::string& owner = "", LockWait wait = {}) {
    return Register(registry_, name, bytes, owner, std::move(wait));
  }
  absl::Status Register(RegionRegistry& registry, const std::string& name, std::int64_t bytes,
                        const std::string& owner, LockWait wait) {
    RegionFacts facts;
    facts.owner = owner;
    facts.name = name;
    facts.key = file_.key();
    facts.bytes = bytes;
    return registry.RegisterNamed(std::move(facts), std::move(wait));
  }
  std::shared_ptr<const Region> Find(const std::string& name, const std::string& owner = "") {
    return registry_.Find(owner, name).value_or(nullptr);
  }
  MemoryKind KindOf(const std::string& name, const std::string& owner = "") {
    return Find(name, owner)->place().kind;
  }
  // Until its memory is unmapped.
  void UnregisterAndWait(const std::string& name, const std::string& owner = "") {
    Ending ending;
    ASSERT_TRUE(registry_.Unregister(owner, name, InUse::kFinish, ending.kept()).ok());
    ending.Wait();
  }
  std::int64_t not_locked(absl::string_view reason) {
    return MetricValue(metrics_, families::kSharedRegionsNotLocked, {reason});
  }

  Metrics metrics_;
  FakeClock clock_;
  FakePageLocker locker_;
  const PageLockLimits limits_{8 * kPage, 6 * kPage, 7, std::chrono::hours(1)};
  PageLocks locks_{locker_, limits_, metrics_.ForRegions(), clock_};
  RegionRegistry registry_{
      {.limits = {}, .named = true, .page_locks = &locks_}, metrics_.ForRegions(), clock_};
  SharedFile file_{16 * kPage};
};

TEST_F(PageLocksTest, ARegionEndsWithoutMemory) {
  const std::string owner(100, 'o');
  ASSERT_TRUE(Register("r", kPage, owner).ok());
  locker_.WaitForCalls(1);
  std::shared_ptr<const Region> region = Find("r", owner);
  ASSERT_TRUE(registry_.Unregister(owner, "r", InUse::kFinish).ok());
  {
    const FailingAllocations failing(0);
    region.reset();
  }
  WaitUntil([&] { return locker_.locked() == 0; });
}

TEST_F(PageLocksTest, ARegionIsLockedUntilItIsUnmapped) {
  ASSERT_TRUE(Register("r", 2 * kPage).ok());
  locker_.WaitForCalls(1);
  WaitUntil([&] { return KindOf("r") == MemoryKind::kPinned; });
  EXPECT_EQ(Find("r")->facts().place.kind, MemoryKind::kHost) << "what was registered";
  EXPECT_TRUE(locker_.writable_all());
  EXPECT_EQ(MetricValue(metrics_, families::kSharedLockedBytes), 2 * kPage);
  UnregisterAndWait("r");
  EXPECT_EQ(locker_.locked(), 0);
  EXPECT_EQ(locker_.unlocks(), 1);
  EXPECT_EQ(MetricValue(metrics_, families::kSharedLockedBytes), 0);
}

TEST_F(PageLocksTest, WhatIsInUseStaysLockedWhenItIsUnregistered) {
  ASSERT_TRUE(Register("r").ok());
  locker_.WaitForCalls(1);
  std::shared_ptr<const Region> used = Find("r");
  Ending ending;
  ASSERT_TRUE(registry_.Unregister("", "r", InUse::kFinish, ending.kept()).ok());
  EXPECT_EQ(locker_.locked(), 1);
  EXPECT_FALSE(ending.ended());
  // Were it unlocked, this would end the test.
  std::memset(used->Part(0, kPage)->data(), 1, kPage);
  used.reset();
  ending.Wait();
  EXPECT_EQ(locker_.locked(), 0);
}

TEST_F(PageLocksTest, TheDriversWordsAreLoggedAndNotForEachRegion) {
  LogLines log;
  locker_.Fail(absl::FailedPreconditionError("the driver has no more pages"));
  const auto refuse = [this](const std::string& name) {
    ASSERT_TRUE(Register(name).ok());
    UnregisterAndWait(name);  // Behind the line, on the same thread.
  };
  // Unless it was unregistered before its turn.
  const auto refuse_so_many = [&](int count) {
    for (const std::int64_t end = not_locked("driver") + count; not_locked("driver") < end;) {
      refuse("r");
    }
  };
  refuse_so_many(1);
  EXPECT_EQ(log.count(), 1);
  EXPECT_THAT(log.text(), HasSubstr("1 regions were not locked"));
  EXPECT_THAT(log.text(), HasSubstr("the last, of 4096 bytes: the driver has no more pages"));
  refuse_so_many(2);
  EXPECT_EQ(log.count(), 1);
  clock_.Advance(std::chrono::seconds(10));
  refuse_so_many(1);
  EXPECT_EQ(log.count(), 2);
  EXPECT_THAT(log.text(), HasSubstr("3 regions were not locked"));
}

TEST_F(PageLocksTest, WhatTheDriverRefusesWorksUnlocked) {
  locker_.Fail(absl::FailedPreconditionError("no more pages"));
  ASSERT_TRUE(Register("r").ok());
  locker_.WaitForCalls(1);
  WaitUntil([&] { return not_locked("driver") != 0; });
  EXPECT_EQ(KindOf("r"), MemoryKind::kHost);
  EXPECT_FALSE(Find("r")->broken());
  UnregisterAndWait("r");
  EXPECT_EQ(locker_.unlocks(), 0);
  // What could not be locked does not count any more.
  locker_.Fail(absl::OkStatus());
  ASSERT_TRUE(Register("large", 6 * kPage).ok());
  locker_.WaitForCalls(2);
}

TEST_F(PageLocksTest, WhatIsBeyondALimitWorksUnlocked) {
  ASSERT_TRUE(Register("a", 5 * kPage, "alice").ok());
  ASSERT_TRUE(Register("b", 2 * kPage, "alice").ok());  // 7 of her 6.
  ASSERT_TRUE(Register("c", 4 * kPage, "bob").ok());    // 9 of all 8.
  EXPECT_EQ(not_locked("limit"), 2);
  ASSERT_TRUE(Register("d", 3 * kPage, "bob").ok());
  locker_.WaitForCalls(2);
  EXPECT_EQ(KindOf("b", "alice"), MemoryKind::kHost);
  EXPECT_EQ(KindOf("c", "bob"), MemoryKind::kHost);
  // What is gone makes room, and what was not counted does not.
  UnregisterAndWait("b", "alice");
  UnregisterAndWait("c", "bob");
  ASSERT_TRUE(Register("e", kPage, "alice").ok());
  EXPECT_EQ(not_locked("limit"), 3);
  UnregisterAndWait("a", "alice");
  ASSERT_TRUE(Register("f", 5 * kPage, "alice").ok());
  locker_.WaitForCalls(3);
  EXPECT_EQ(not_locked("limit"), 3);
}

// A locked one's file is open, because it may become shorter.
TEST_F(PageLocksTest, WhatIsBeyondTheirNumberWorksUnlockedAndKeepsNoFile) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(Register(absl::StrCat("a", i), kPage, "alice").ok());
  }
  ASSERT_TRUE(Register("b", kPage, "bob").ok());
  EXPECT_EQ(descriptors(), before + 7);
  EXPECT_EQ(not_locked("limit"), 0);
  ASSERT_TRUE(Register("c", kPage, "bob").ok()) << "the last byte of both limits";
  EXPECT_EQ(not_locked("limit"), 1);
  EXPECT_EQ(KindOf("c", "bob"), MemoryKind::kHost);
  EXPECT_EQ(descriptors(), before + 7);
  UnregisterAndWait("b", "bob");
  ASSERT_TRUE(Register("d", kPage, "bob").ok());
  EXPECT_EQ(not_locked("limit"), 1);
}

TEST_F(PageLocksTest, WhoWaitsFindsItLocked) {
  locker_.Hold();
  Ending first;
  Ending second;
  ASSERT_TRUE(Register("first", kPage, "", {first.kept()}).ok());
  ASSERT_TRUE(Register("second", kPage, "", {second.kept()}).ok());
  locker_.WaitForHeld();
  EXPECT_FALSE(first.ended());
  locker_.Release();
  first.Wait();
  EXPECT_EQ(KindOf("first"), MemoryKind::kPinned);
  second.Wait();
  EXPECT_EQ(KindOf("second"), MemoryKind::kPinned);
  EXPECT_EQ(not_locked("late"), 0);
}

TEST_F(PageLocksTest, NobodyWaitsForWhatWillNotBeLocked) {
  Ending beyond;
  ASSERT_TRUE(Register("beyond", 9 * kPage, "", {beyond.kept()}).ok());
  EXPECT_TRUE(beyond.ended()) << "it is beyond a limit";
  locker_.Hold();
  ASSERT_TRUE(Register("before").ok());
  locker_.WaitForHeld();
  Ending gone;
  ASSERT_TRUE(Register("gone", kPage, "", {gone.kept()}).ok());
  EXPECT_FALSE(gone.ended());
  ASSERT_TRUE(registry_.Unregister("", "gone", InUse::kFinish).ok());
  locker_.Fail(absl::FailedPreconditionError("no more pages"));
  locker_.Release();
  gone.Wait();
  Ending refused;
  ASSERT_TRUE(Register("refused", kPage, "", {refused.kept()}).ok());
  refused.Wait();
  EXPECT_EQ(KindOf("refused"), MemoryKind::kHost);
  EXPECT_EQ(not_locked("late"), 0);
}

TEST_F(PageLocksTest, AWaitIsBoundedAndTheRegionIsLockedLater) {
  LogLines log;
  PageLockLimits limits = limits_;
  limits.max_wait = Duration(0);
  PageLocks locks(locker_, limits, metrics_.ForRegions(), clock_);
  RegionRegistry registry({.limits = {}, .named = true, .page_locks = &locks},
                          metrics_.ForRegions(), clock_);
  locker_.Hold();
  Ending late;
  ASSERT_TRUE(Register(registry, "r", kPage, "", {late.kept()}).ok());
  late.Wait();
  EXPECT_EQ(not_locked("late"), 1);
  EXPECT_EQ(registry.Find("", "r").value()->place().kind, MemoryKind::kHost);
  // One that has less time than the limit gives.
  Ending by;
  ASSERT_TRUE(Register("by", kPage, "", {by.kept(), TimePoint{}}).ok());
  by.Wait();
  EXPECT_EQ(not_locked("late"), 2);
  EXPECT_EQ(log.count(), 2) << "one of each PageLocks";
  EXPECT_THAT(log.text(), HasSubstr("1 regions were not locked for the devices in time"));
  locker_.Release();
  WaitUntil([&] { return registry.Find("", "r").value()->place().kind == MemoryKind::kPinned; });
}

TEST_F(PageLocksTest, NoRequestWaitsForTheDriver) {
  locker_.Hold();
  ASSERT_TRUE(Register("first").ok());
  locker_.WaitForHeld();
  ASSERT_TRUE(Register("second").ok());
  EXPECT_EQ(KindOf("first"), MemoryKind::kHost);
  EXPECT_EQ(KindOf("second"), MemoryKind::kHost);
  // Nor does the thread's work count as use.
  Ending first;
  Ending second;
  EXPECT_TRUE(registry_.Unregister("", "first", InUse::kRefuse, first.kept()).ok());
  EXPECT_TRUE(registry_.Unregister("", "second", InUse::kRefuse, second.kept()).ok());
  EXPECT_FALSE(first.ended());
  locker_.Release();
  first.Wait();
  second.Wait();
  EXPECT_EQ(locker_.unlocks(), 1) << "the second was gone before its turn";
  EXPECT_EQ(locker_.locked(), 0);
}

TEST_F(PageLocksTest, AReadOnlyRegionIsLockedForReading) {
  RegionFacts facts;
  facts.kind = RegionKind::kDescriptor;
  facts.name = "r";
  facts.bytes = kPage;
  facts.writable = false;
  ASSERT_TRUE(registry_.RegisterFile(file_.descriptor(), std::move(facts)).ok());
  locker_.WaitForCalls(1);
  EXPECT_FALSE(locker_.writable_all());
}

// Devices write to pages that the file has no more, without a fault.
TEST_F(PageLocksTest, AFileThatWasMadeShorterBreaksALockedRegion) {
  ASSERT_TRUE(Register("r", 2 * kPage).ok());
  locker_.WaitForCalls(1);
  WaitUntil([&] { return KindOf("r") == MemoryKind::kPinned; });
  EXPECT_FALSE(Find("r")->broken());
  file_.Resize(2 * kPage);
  EXPECT_FALSE(Find("r")->broken());
  file_.Resize(2 * kPage - 1);
  EXPECT_TRUE(Find("r")->broken());
  file_.Resize(16 * kPage);
  EXPECT_TRUE(Find("r")->broken()) << "its pages are gone";
}

// Regions come, are used and go, in any order, beside those of others and a driver that fails now
// and then. FakePageLocker ends the test when one is unmapped while it is locked.
TEST_F(PageLocksTest, WhatComesAndGoesLeavesNothing) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  const int mappings = MappingsOf(file_);  // Its own.
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 4; ++client) {
    clients.emplace_back([this, client, seed] {
      std::mt19937 random(seed + client);
      const std::string owner(1, static_cast<char>('a' + client));
      std::vector<std::shared_ptr<const Region>> used;
      for (int i = 0; i < 400; ++i) {
        if (random() % 16 == 0) locker_.Fail(absl::InternalError("now and then"));
        const std::string name = std::to_string(i);
        const std::int64_t bytes = 1 + random() % (3 * kPage);
        ASSERT_TRUE(Register(name, bytes, owner).ok());
        used.push_back(Find(name, owner));
        if (random() % 2 == 0) std::this_thread::yield();
        std::memset(used.back()->Part(0, bytes)->data(), 1, static_cast<std::size_t>(bytes));
        if (random() % 16 == 0) locker_.Fail(absl::OkStatus());
        ASSERT_TRUE(registry_.Unregister(owner, name, InUse::kFinish).ok());
        if (random() % 3 == 0) used.clear();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  WaitUntil([&] { return MetricValue(metrics_, families::kSharedRegions) == 0; });
  EXPECT_EQ(locker_.locked(), 0);
  EXPECT_EQ(MetricValue(metrics_, families::kSharedLockedBytes), 0);
  EXPECT_EQ(MappingsOf(file_), mappings);
  const std::int64_t refused = not_locked("limit");
  ASSERT_TRUE(Register("all", limits_.max_owner_bytes, "a").ok());
  EXPECT_EQ(not_locked("limit"), refused) << "all of it is free again";
}

}  // namespace
}  // namespace normd::testing

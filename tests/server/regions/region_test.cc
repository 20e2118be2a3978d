#include "server/regions/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/regions/region_registry.h"
#include "tests/server/regions/shared_file.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

absl::StatusOr<std::shared_ptr<const Region>> Map(const SharedFile& file, std::int64_t offset,
                                                  std::int64_t bytes) {
  RegionFacts facts;
  facts.name = "r";
  facts.offset = offset;
  facts.bytes = bytes;
  facts.writable = true;
  return Region::Map(file.descriptor(), std::move(facts), nullptr);
}

TEST(RegionTest, HasTheFilesBytesFromAnyOffset) {
  const SharedFile file(4 * kPage);
  for (std::int64_t i = 0; i < 4 * kPage; ++i) {
    file.data()[i] = static_cast<std::byte>(i % 251);
  }
  for (const std::int64_t offset :
       {std::int64_t{0}, std::int64_t{1}, kPage - 1, kPage, kPage + 5}) {
    for (const std::int64_t bytes : {std::int64_t{1}, kPage, 2 * kPage, 4 * kPage - offset}) {
      const auto region = Map(file, offset, bytes);
      ASSERT_TRUE(region.ok()) << region.status();
      const auto part = (*region)->Part(0, bytes);
      ASSERT_TRUE(part.has_value());
      EXPECT_EQ(std::memcmp(part->data(), file.data() + offset, part->size()), 0);
    }
  }
}

TEST(RegionTest, OffsetPlusSizeThatOverflowsIsRefused) {
  const SharedFile file(kPage);
  for (const auto& [offset, bytes] :
       {std::pair{kMost, std::int64_t{1}}, std::pair{std::int64_t{1}, kMost},
        std::pair{kMost - 1, kMost - 1}, std::pair{kMost - kPage + 2, kPage}}) {
    const auto region = Map(file, offset, bytes);
    EXPECT_EQ(region.status().code(), absl::StatusCode::kOutOfRange) << region.status();
    EXPECT_THAT(std::string(region.status().message()),
                HasSubstr("wanted at most 9223372036854775807 together"));
  }
}

TEST(RegionTest, SizeZeroAndNegativeNumbersAreRefused) {
  const SharedFile file(kPage);
  for (const auto& [offset, bytes] :
       {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, -1}, {-1, 1}, {-kMost - 1, kMost}}) {
    EXPECT_EQ(Map(file, offset, bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(RegionTest, AFileShorterThanItSaysIsRefused) {
  const SharedFile file(kPage);
  for (const auto& [offset, bytes] :
       {std::pair<std::int64_t, std::int64_t>{0, kPage + 1}, {1, kPage}, {kPage, 1}, {0, kMost}}) {
    const auto region = Map(file, offset, bytes);
    EXPECT_EQ(region.status().code(), absl::StatusCode::kOutOfRange) << region.status();
    EXPECT_THAT(std::string(region.status().message()), HasSubstr("4096 bytes that the file has"));
  }
}

// A sparse file may say that it has any size at all.
TEST(RegionTest, AFileThatSaysItHasEverythingCannotBeMappedWhole) {
  SharedFile file(kPage);
  if (ftruncate(file.descriptor(), kMost) != 0) GTEST_SKIP() << "no such file here";
  const auto region = Map(file, 0, kMost);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted) << region.status();
}

TEST(RegionTest, OnlyWhatLiesInItIsAPart) {
  const SharedFile file(2 * kPage);
  const auto region = Map(file, 100, kPage);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE((*region)->Part(0, kPage).has_value());
  EXPECT_TRUE((*region)->Part(kPage, 0).has_value());
  for (const auto& [offset, bytes] : {std::pair<std::int64_t, std::int64_t>{0, kPage + 1},
                                      {1, kPage},
                                      {kPage + 1, 0},
                                      {kPage, 1},
                                      {-1, 1},
                                      {1, -1},
                                      {kMost, kMost},
                                      {kMost, 1},
                                      {1, kMost},
                                      {-kMost - 1, kMost}}) {
    EXPECT_FALSE((*region)->Part(offset, bytes).has_value()) << offset << ", " << bytes;
  }
}

TEST(RegionTest, PartsOverlapByFileWhateverTheirAddresses) {
  const SharedFile file(4 * kPage);
  const SharedFile other(4 * kPage);
  const auto a = *Map(file, 0, 4 * kPage);
  const auto b = *Map(file, kPage, kPage);
  const auto c = *Map(other, 0, 4 * kPage);
  EXPECT_NE(a->Part(kPage, 1)->data(), b->Part(0, 1)->data());
  EXPECT_TRUE(a->PartOfFile(kPage, 8).Overlaps(b->PartOfFile(0, 8)));
  EXPECT_TRUE(a->PartOfFile(kPage - 1, 2).Overlaps(b->PartOfFile(0, 8)));
  EXPECT_FALSE(a->PartOfFile(kPage - 1, 1).Overlaps(b->PartOfFile(0, 8)));
  EXPECT_FALSE(a->PartOfFile(kPage, 8).Overlaps(b->PartOfFile(8, 8)));
  EXPECT_FALSE(a->PartOfFile(0, 8).Overlaps(c->PartOfFile(0, 8)));
}

TEST(RegionTest, AFileMadeShorterBreaksItAndNothingElse) {
  SharedFile file(2 * kPage);
  const auto region = *Map(file, 0, 2 * kPage);
  EXPECT_FALSE(region->broken());
  file.Resize(0);
  EXPECT_FALSE(region->broken()) << "nobody has touched it";
  EXPECT_EQ((*region->Part(kPage, 1))[0], std::byte{0});
  EXPECT_TRUE(region->broken());
}

// The mapping keeps the file's memory.
TEST(RegionTest, AFileThatIsUnlinkedAndReplacedStays) {
  const SharedFile file(kPage);
  const auto region = *Map(file, 0, kPage);
  shm_unlink(file.key().c_str());
  file.data()[3] = std::byte{9};
  EXPECT_EQ((*region->Part(3, 1))[0], std::byte{9});
  EXPECT_FALSE(region->broken());
}

std::ptrdiff_t MappingsOfTheProcess() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}
std::ptrdiff_t DescriptorsOfTheProcess() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class RegionRegistryTest : public ::testing::Test {
 protected:
  static RegionFacts Facts(const SharedFile& file, const std::string& name,
                           const std::string& owner = "", std::int64_t bytes = kPage) {
    RegionFacts facts;
    facts.owner = owner;
    facts.name = name;
    facts.key = file.key();
    facts.bytes = bytes;
    return facts;
  }
  std::int64_t refused(absl::string_view reason) {
    return MetricValue(metrics_, families::kSharedRegionsRefused, {reason});
  }

  Metrics metrics_;
  FakeClock clock_;
  const RegionLimits limits_{4, 8 * kPage, 3, 6 * kPage};
  RegionRegistry registry_{{limits_, true}, metrics_.ForRegions(), clock_};
  const SharedFile file_{16 * kPage};
};

TEST_F(RegionRegistryTest, FindsWhatIsRegisteredUntilItIsUnregistered) {
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "b")).ok());
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "a", "", 2 * kPage)).ok());
  const auto list = registry_.List("");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[0].bytes, 2 * kPage);
  EXPECT_TRUE(list[1].writable);
  EXPECT_TRUE(registry_.Find("", "a").ok());
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 2);
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegionBytes), 3 * kPage);
  EXPECT_TRUE(registry_.Unregister("", "a", InUse::kFinish).ok());
  EXPECT_EQ(registry_.Find("", "a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_.Unregister("", "a", InUse::kFinish).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(registry_.UnregisterAll("", RegionKind::kNamed, InUse::kFinish).ok());
  EXPECT_TRUE(registry_.List("").empty());
}

TEST_F(RegionRegistryTest, AnotherIdentitysRegionIsNotThere) {
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "r", "alice")).ok());
  for (const char* other : {"", "bob", "alic", "alicer"}) {
    const absl::Status status = registry_.Find(other, "r").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), registry_.Find("alice", "s").status().message().empty()
                                    ? ""
                                    : "region \"r\" is not registered");
    EXPECT_TRUE(registry_.List(other).empty());
    EXPECT_EQ(registry_.Unregister(other, "r", InUse::kFinish).code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(registry_.UnregisterAll(other, RegionKind::kNamed, InUse::kFinish).ok());
  }
  EXPECT_TRUE(registry_.Find("alice", "r").ok());
  // The name is everybody's.
  EXPECT_TRUE(registry_.RegisterNamed(Facts(file_, "r", "bob")).ok());
}

TEST_F(RegionRegistryTest, ReRegisteringANameIsRefusedUntilItIsFree) {
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "r")).ok());
  EXPECT_EQ(registry_.RegisterNamed(Facts(file_, "r")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(refused("name"), 1);
  const auto old = *registry_.Find("", "r");
  ASSERT_TRUE(registry_.Unregister("", "r", InUse::kFinish).ok());
  const SharedFile second(kPage);
  ASSERT_TRUE(registry_.RegisterNamed(Facts(second, "r")).ok());
  // A holder of the first one still has it.
  second.data()[0] = std::byte{2};
  file_.data()[0] = std::byte{1};
  EXPECT_EQ((*old->Part(0, 1))[0], std::byte{1});
  EXPECT_EQ((*(*registry_.Find("", "r"))->Part(0, 1))[0], std::byte{2});
}

TEST_F(RegionRegistryTest, UnregisteredWhileInUseStaysForWhoeverUsesIt) {
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "r")).ok());
  auto used = *registry_.Find("", "r");
  const absl::Status refusal = registry_.Unregister("", "r", InUse::kRefuse);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("in use"));
  EXPECT_EQ(registry_.UnregisterAll("", RegionKind::kNamed, InUse::kRefuse).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(registry_.Find("", "r").ok()) << "a refusal changes nothing";
  ASSERT_TRUE(registry_.Unregister("", "r", InUse::kFinish).ok());
  (*used->Part(0, 1))[0] = std::byte{4};
  EXPECT_EQ(file_.data()[0], std::byte{4});
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 1) << "it is still mapped, and counts";
  used.reset();
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "r")).ok());
  EXPECT_TRUE(registry_.Unregister("", "r", InUse::kRefuse).ok()) << "nobody uses it";
}

TEST_F(RegionRegistryTest, WhoeverListsUsesNothing) {
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "r")).ok());
  const std::vector<ListedRegion> first = registry_.ListAll();
  const std::vector<RegionFacts> own = registry_.List("");
  const absl::StatusOr<RegionFacts> facts = registry_.FactsOf("", "r");
  const std::vector<ListedRegion> second = registry_.ListAll();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_FALSE(second[0].in_use) << "other lists, and whoever asked for the facts, have copies";
  auto used = *registry_.Find("", "r");
  EXPECT_TRUE(registry_.ListAll()[0].in_use);
  used.reset();
  EXPECT_TRUE(registry_.Unregister("", "r", InUse::kRefuse).ok());
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0)
      << "what was listed does not keep it";
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->name, own[0].name);
  EXPECT_EQ(registry_.FactsOf("", "r").status().code(), absl::StatusCode::kNotFound);
}

// A search: lists, questions and other registrations at any moment are no use of a region.
TEST_F(RegionRegistryTest, NothingIsInUseWhileThreadsListAndRegister) {
  std::atomic<bool> done{false};
  std::atomic<int> in_use{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      while (!done.load(std::memory_order_relaxed)) {
        for (const ListedRegion& listed : registry_.ListAll()) in_use += listed.in_use ? 1 : 0;
        registry_.List("alice");
        registry_.FactsOf("alice", "r").IgnoreError();
      }
    });
  }
  threads.emplace_back([&] {
    while (!done.load(std::memory_order_relaxed)) {
      registry_.RegisterNamed(Facts(file_, "s", "alice")).IgnoreError();
    }
  });
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    EXPECT_TRUE(registry_.RegisterNamed(Facts(file_, "r", "alice")).ok());
    const bool all = i % 2 == 0;
    const absl::Status status =
        all ? registry_.UnregisterAll("alice", RegionKind::kNamed, InUse::kRefuse)
            : registry_.Unregister("alice", "r", InUse::kRefuse);
    if (status.ok()) continue;
    ++refused;
    registry_.Unregister("alice", "r", InUse::kFinish).IgnoreError();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(in_use, 0);
}

TEST_F(RegionRegistryTest, LimitsCountWhatIsMapped) {
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, name, "alice")).ok());
  }
  absl::Status status = registry_.RegisterNamed(Facts(file_, "d", "alice"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max_identity_shared_regions"));
  const auto held = *registry_.Find("alice", "a");
  ASSERT_TRUE(registry_.Unregister("alice", "a", InUse::kFinish).ok());
  EXPECT_EQ(registry_.RegisterNamed(Facts(file_, "d", "alice")).code(),
            absl::StatusCode::kResourceExhausted)
      << "a request still has it";
  status = registry_.RegisterNamed(Facts(file_, "a", "bob", 7 * kPage));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max_shared_bytes"));
  ASSERT_TRUE(registry_.RegisterNamed(Facts(file_, "a", "bob", 5 * kPage)).ok());
  status = registry_.RegisterNamed(Facts(file_, "a", "carol"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max_shared_regions"));
  EXPECT_EQ(refused("limit"), 4);
  EXPECT_EQ(registry_.Find("carol", "a").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RegionRegistryTest, BytesOfOneIdentityHaveALimit) {
  const absl::Status status = registry_.RegisterNamed(Facts(file_, "a", "bob", 6 * kPage + 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max_identity_shared_bytes"));
  EXPECT_TRUE(registry_.RegisterNamed(Facts(file_, "a", "bob", 6 * kPage)).ok());
}

TEST_F(RegionRegistryTest, NamesHaveASizeAndSwitchedOffMeansOff) {
  EXPECT_EQ(registry_.RegisterNamed(Facts(file_, "")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.RegisterNamed(Facts(file_, std::string(257, 'x'))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(registry_.RegisterNamed(Facts(file_, std::string("a\0/..", 5))).ok())
      << "a region's name is no path";
  RegionRegistry off({limits_, false}, metrics_.ForRegions(), clock_);
  EXPECT_EQ(off.RegisterNamed(Facts(file_, "r")).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(refused("off"), 1);
}

TEST_F(RegionRegistryTest, AHundredThousandRegistrationsLeaveNothing) {
  const std::ptrdiff_t mappings = MappingsOfTheProcess();
  const std::ptrdiff_t descriptors = DescriptorsOfTheProcess();
  for (int i = 0; i < 50'000; ++i) {
    // Each second one is refused: the limit is met, or the name taken, or the file not there.
    RegionFacts facts = Facts(file_, std::to_string(i % 7), i % 3 == 0 ? "alice" : "bob");
    if (i % 11 == 0) facts.key = "nothing";
    registry_.RegisterNamed(facts).IgnoreError();
    registry_.RegisterNamed(facts).IgnoreError();
    if (i % 5 == 0) {
      registry_.UnregisterAll(facts.owner, RegionKind::kNamed, InUse::kFinish).IgnoreError();
    }
  }
  EXPECT_LE(MetricValue(metrics_, families::kSharedRegions), limits_.max_regions);
  EXPECT_TRUE(registry_.UnregisterAll("alice", RegionKind::kNamed, InUse::kFinish).ok());
  EXPECT_TRUE(registry_.UnregisterAll("bob", RegionKind::kNamed, InUse::kFinish).ok());
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegionBytes), 0);
  EXPECT_LE(MappingsOfTheProcess(), mappings + 4) << "the allocator may have taken one";
  EXPECT_EQ(DescriptorsOfTheProcess(), descriptors);
}

TEST_F(RegionRegistryTest, ThreadsRegisterUseAndUnregisterTheSameNames) {
  std::vector<std::thread> threads;
  std::atomic<int> used{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2000; ++i) {
        const std::string name = std::to_string((i + thread) % 3);
        registry_.RegisterNamed(Facts(file_, name)).IgnoreError();
        if (const auto region = registry_.Find("", name); region.ok()) {
          used += (*(*region)->Part(kPage - 1, 1))[0] == std::byte{0} ? 1 : 0;
        }
        registry_.Unregister("", name, i % 2 == 0 ? InUse::kRefuse : InUse::kFinish).IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(used, 0);
  EXPECT_TRUE(registry_.UnregisterAll("", RegionKind::kNamed, InUse::kRefuse).ok());
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
}

TEST_F(RegionRegistryTest, ARegionMayOutliveItsRegistry) {
  auto registry = std::make_unique<RegionRegistry>(RegionRegistryOptions{limits_, true},
                                                   metrics_.ForRegions(), clock_);
  ASSERT_TRUE(registry->RegisterNamed(Facts(file_, "r")).ok());
  auto region = *registry->Find("", "r");
  registry.reset();
  EXPECT_EQ((*region->Part(0, 1))[0], std::byte{0});
  region.reset();
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
}

}  // namespace
}  // namespace normd::testing

#include "server/regions/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "tests/server/regions/shared_file.h"

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

}  // namespace
}  // namespace normd::testing

#include "base/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer_pool.h"
#include "base/mutex.h"

namespace normd {
namespace {

class BufferTest : public testing::Test {
 protected:
  Buffer Make(int& releases) {
    return Buffer(memory_.data(), memory_.size(), [&releases] { ++releases; });
  }
  std::array<std::byte, 8> memory_{};
};

TEST_F(BufferTest, GivesItsMemoryBackOnce) {
  int releases = 0;
  {
    Buffer buffer = Make(releases);
    EXPECT_EQ(buffer.data(), memory_.data());
    EXPECT_EQ(buffer.size(), memory_.size());
    EXPECT_EQ(releases, 0);
  }
  EXPECT_EQ(releases, 1);
}

TEST_F(BufferTest, MovedFromOwnsNothing) {
  int releases = 0;
  {
    Buffer from = Make(releases);
    Buffer to = std::move(from);
    EXPECT_EQ(to.data(), memory_.data());
    EXPECT_EQ(from.data(), nullptr);  // NOLINT(bugprone-use-after-move): the state it leaves.
    EXPECT_EQ(from.size(), 0u);
  }
  EXPECT_EQ(releases, 1);
}

TEST_F(BufferTest, AssignmentGivesTheOldMemoryBackAtOnce) {
  int old_releases = 0;
  int new_releases = 0;
  Buffer buffer = Make(old_releases);
  buffer = Make(new_releases);
  EXPECT_EQ(old_releases, 1);
  EXPECT_EQ(new_releases, 0);
  buffer = Buffer();
  EXPECT_EQ(new_releases, 1);
}

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

Buffer MustTake(BufferPool& pool, std::int64_t size) {
  absl::StatusOr<Buffer> buffer = pool.Take(size);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.ok() ? *std::move(buffer) : Buffer();
}

class BufferPoolSizeTest : public testing::TestWithParam<std::int64_t> {};

TEST_P(BufferPoolSizeTest, GivesAlignedMemoryOfTheSizeAskedFor) {
  const std::int64_t size = GetParam();
  BufferPool pool(0);
  Buffer buffer = MustTake(pool, size);
  ASSERT_EQ(buffer.size(), static_cast<std::size_t>(size));
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  EXPECT_EQ(address % 64, 0U);
  if (size >= 4 * kMiB) {
    EXPECT_EQ(address % (2 * kMiB), 0U);
  }
  std::memset(buffer.data(), 0xa5, buffer.size());
  EXPECT_GE(pool.used_bytes(), size);
  EXPECT_LE(pool.used_bytes(), std::max<std::int64_t>(256, size + size / 4));
  EXPECT_EQ(pool.free_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(AroundTheClasses, BufferPoolSizeTest,
                         testing::Values(1, 255, 256, 257, 319, 320, 321, 384, 448, 449, 511, 512,
                                         513, 640, 641, kMiB - 1, kMiB, kMiB + 1, 4 * kMiB - 1,
                                         4 * kMiB, 4 * kMiB + 1, 5 * kMiB, 33 * kMiB));

TEST(BufferPoolTest, AnEmptyBufferNeedsNoMemory) {
  BufferPool pool(kMiB);
  EXPECT_EQ(MustTake(pool, 0).size(), 0U);
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(BufferPoolTest, GivesTheBlockThatWasUsedLastAgain) {
  BufferPool pool(kMiB);
  std::optional<Buffer> a = MustTake(pool, 1000);
  std::optional<Buffer> b = MustTake(pool, 1000);
  const std::byte* last = b->data();
  a.reset();
  b.reset();
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.free_bytes(), 2 * kKiB);
  EXPECT_EQ(MustTake(pool, 900).data(), last) << "900 and 1000 bytes are of one class";
}

TEST(BufferPoolTest, ReturnsTheOldestToTheSystemBeyondItsLimit) {
  BufferPool pool(3 * kKiB);
  std::optional<Buffer> oldest = MustTake(pool, kKiB);
  std::optional<Buffer> middle = MustTake(pool, kKiB);
  std::optional<Buffer> large = MustTake(pool, 2 * kKiB);
  const std::byte* kept = middle->data();
  oldest.reset();
  middle.reset();
  large.reset();
  EXPECT_EQ(pool.free_bytes(), 3 * kKiB);
  Buffer one = MustTake(pool, kKiB);
  EXPECT_EQ(one.data(), kept);
  EXPECT_EQ(pool.free_bytes(), 2 * kKiB) << "the large one is kept";
}

TEST(BufferPoolTest, KeepsNothingLargerThanItsLimit) {
  BufferPool pool(kMiB);
  MustTake(pool, 1000);
  MustTake(pool, 2 * kMiB);
  EXPECT_EQ(pool.free_bytes(), kKiB) << "and does not give up others for it";
}

TEST(BufferPoolTest, TrimReturnsWhatWasNotNeededSinceTheLastOne) {
  BufferPool pool(kMiB);
  std::optional<Buffer> a = MustTake(pool, kKiB);
  std::optional<Buffer> b = MustTake(pool, kKiB);
  a.reset();
  b.reset();
  pool.Trim();
  EXPECT_EQ(pool.free_bytes(), 2 * kKiB) << "both were needed before it";
  MustTake(pool, kKiB);
  pool.Trim();
  EXPECT_EQ(pool.free_bytes(), kKiB) << "one at a time was needed";
  pool.Trim();
  EXPECT_EQ(pool.free_bytes(), 0);
}

TEST(BufferPoolTest, TrimKeepsBlocksOfEverySizeThatIsNeeded) {
  BufferPool pool(kMiB);
  for (int i = 0; i < 3; ++i) {  // In turn.
    MustTake(pool, 64 * kKiB);
    MustTake(pool, kKiB);
    pool.Trim();
    EXPECT_EQ(pool.free_bytes(), 65 * kKiB);
  }
}

TEST(BufferPoolTest, ABufferMayOutliveThePool) {
  auto pool = std::make_unique<BufferPool>(64 * kMiB);
  Buffer small = MustTake(*pool, 100);
  Buffer large = MustTake(*pool, 8 * kMiB);
  pool.reset();
  std::memset(small.data(), 1, small.size());
  std::memset(large.data(), 1, large.size());
  std::thread([buffer = std::move(large)] {}).join();
}

TEST(BufferPoolTest, RefusesWhatTheSystemDoesNotHave) {
  BufferPool pool(kMiB);
  for (const std::int64_t size : {std::int64_t{1} << 46, (std::int64_t{1} << 46) + 1, INT64_MAX}) {
    const absl::Status status = pool.Take(size).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << size;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(size)));
  }
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(MustTake(pool, 1000).size(), 1000U);
}

// Takers write a mark of their own through a block and hand it to another thread, which checks the
// mark and releases: a block with two users shows as a foreign mark.
TEST(BufferPoolTest, NeverGivesABlockToTwoUsers) {
  BufferPool pool(16 * kKiB);
  Mutex mutex;
  std::vector<std::pair<Buffer, int>> handed;
  std::atomic<int> foreign{0};
  const auto work = [&](int thread) {
    for (int i = 0; i < 5000; ++i) {
      Buffer buffer = MustTake(pool, 100 + (i * 37 + thread * 101) % 3000);
      const int mark = (thread * 61 + i) % 251;
      std::memset(buffer.data(), mark, buffer.size());
      std::pair<Buffer, int> other;
      {
        MutexLock lock(mutex);
        handed.emplace_back(std::move(buffer), mark);
        std::swap(handed.back(), handed[static_cast<std::size_t>(i) % handed.size()]);
        if (handed.size() > 8) {
          other = std::move(handed.back());
          handed.pop_back();
        }
      }
      const auto is_mark = [&other](std::byte b) { return b == std::byte(other.second); };
      if (!std::all_of(other.first.data(), other.first.data() + other.first.size(), is_mark)) {
        ++foreign;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(foreign, 0);
  handed.clear();
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_LE(pool.free_bytes(), 16 * kKiB);
}

}  // namespace
}  // namespace normd

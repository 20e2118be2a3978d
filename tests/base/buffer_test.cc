#include "base/buffer.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

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

}  // namespace
}  // namespace normd

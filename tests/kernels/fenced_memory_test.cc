#include "tests/support/fenced_memory.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace normd::norm::testing {
namespace {

using Fence = FencedMemory::Fence;

// Through a volatile pointer, so that the compiler does not leave the access out.
unsigned char Read(const volatile unsigned char* at) { return *at; }

TEST(FencedMemoryDeathTest, EndsTheProgramThatReadsOrWritesBesideIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::size_t bytes : {1, 64, 4095, 4096, 4097}) {
    FencedMemory behind(bytes, Fence::kBehind);
    EXPECT_DEATH(Read(behind.data() + bytes), "");
    EXPECT_DEATH(const_cast<volatile unsigned char*>(behind.data())[bytes] = 1, "");
    FencedMemory before(bytes, Fence::kBefore);
    EXPECT_DEATH(Read(before.data() - 1), "");
    before.data()[0] = behind.data()[bytes - 1] = 1;
  }
}

TEST(FencedMirrorTest, CopiesARunOfMemoryOnce) {
  const unsigned char original[] = {1, 2, 3, 4};
  FencedMirror mirror(Fence::kBehind);
  auto* const copy = static_cast<unsigned char*>(mirror.Copy(original, 3));
  EXPECT_EQ(copy[2], 3);
  EXPECT_EQ(mirror.Copy(original, 3), copy);
  EXPECT_NE(mirror.Copy(original + 1, 3), copy);
  EXPECT_EQ(mirror.Copy(nullptr, 3), nullptr);
}

}  // namespace
}  // namespace normd::norm::testing

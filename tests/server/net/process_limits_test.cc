#include "server/net/process_limits.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

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

}  // namespace
}  // namespace normd

#include "flags/byte_size.h"

#include <gtest/gtest.h>

#include <limits>

namespace normd {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(ByteSizeTest, ReadsEachUnit) {
  EXPECT_EQ(ParseByteSize("0"), 0);
  EXPECT_EQ(ParseByteSize("4097"), 4097);
  EXPECT_EQ(ParseByteSize("-1"), -1);
  EXPECT_EQ(ParseByteSize("3KiB"), 3 << 10);
  EXPECT_EQ(ParseByteSize("64MiB"), 64 << 20);
  EXPECT_EQ(ParseByteSize("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(ParseByteSize("5TiB"), std::int64_t{5} << 40);
  EXPECT_EQ(ParseByteSize("3kB"), 3000);
  EXPECT_EQ(ParseByteSize("3KB"), 3000);
  EXPECT_EQ(ParseByteSize("64MB"), 64'000'000);
  EXPECT_EQ(ParseByteSize("2GB"), 2'000'000'000);
  EXPECT_EQ(ParseByteSize("5TB"), 5'000'000'000'000);
  EXPECT_EQ(ParseByteSize("9223372036854775807"), kMost);
}

TEST(ByteSizeTest, RefusesOtherTexts) {
  for (const char* text :
       {"", "MiB", "B", "1B", "1M", "1.5GiB", "1 e3", "1MiBs", "1mib", "0x10", "1MiBKiB", "inf",
        "9223372036854775808", "8388608TiB", "-8388609TiB", "9223373TB"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
}

TEST(ByteSizeTest, WritesWhatItReads) {
  EXPECT_EQ(FormatByteSize(0), "0");
  EXPECT_EQ(FormatByteSize(4096), "4KiB");
  EXPECT_EQ(FormatByteSize(64 << 20), "64MiB");
  EXPECT_EQ(FormatByteSize(std::int64_t{3} << 29), "1536MiB");
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1023}, std::int64_t{1024},
                                   std::int64_t{-2048}, std::int64_t{1} << 50, kMost, -kMost}) {
    EXPECT_EQ(ParseByteSize(FormatByteSize(bytes)), bytes) << bytes;
  }
}

}  // namespace
}  // namespace normd

#include "server/config/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normd {
namespace {

using ::testing::HasSubstr;

ServerConfig Defaults() { return ParseCommandLine({})->config; }

TEST(FitToMemoryTest, ChangesNothingWhereAllFits) {
  ServerConfig config = Defaults();
  EXPECT_EQ(FitToMemory(config, std::int64_t{16} << 30), "");
  EXPECT_EQ(config.max_transport_bytes, Defaults().max_transport_bytes);
  EXPECT_EQ(config.max_request_bytes, Defaults().max_request_bytes);
}

TEST(FitToMemoryTest, StaysValidAndWithinEveryLimit) {
  for (std::int64_t left = 1; left < std::int64_t{1} << 45; left = left * 3 / 2 + 1) {
    for (const std::int64_t transport : {std::int64_t{0}, Defaults().max_transport_bytes}) {
      ServerConfig config = Defaults();
      config.max_transport_bytes = transport;
      FitToMemory(config, left);
      EXPECT_TRUE(Validate(config).ok()) << left << " " << Validate(config);
      EXPECT_GT(config.max_transport_bytes, 0);
      EXPECT_LE(config.max_request_bytes, Defaults().max_request_bytes);
      if (left > std::int64_t{64} << 20) {
        EXPECT_LE(config.max_transport_bytes + config.max_inflight_bytes / 2 + config.pool_bytes,
                  left);
      }
    }
  }
}

TEST(FitToMemoryTest, SaysWhatItLowers) {
  ServerConfig config = Defaults();
  const std::string text = FitToMemory(config, std::int64_t{1} << 30);
  EXPECT_THAT(text, HasSubstr("--max_transport_bytes 1073741824 -> 268435456"));
  EXPECT_THAT(text, HasSubstr("--max_request_bytes 268435456 -> "));
}

}  // namespace
}  // namespace normd

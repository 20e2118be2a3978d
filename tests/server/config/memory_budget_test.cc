#include "server/config/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace normd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ServerConfig Defaults() { return ParseCommandLine({})->config; }

TEST(FitToMemoryTest, ChangesNothingWhereAllFits) {
  ServerConfig config = Defaults();
  EXPECT_EQ(FitToMemory(config, std::int64_t{16} << 30, true), "");
  EXPECT_EQ(config.max_transport_bytes, Defaults().max_transport_bytes);
  EXPECT_EQ(config.max_request_bytes, Defaults().max_request_bytes);
}

TEST(FitToMemoryTest, StaysValidAndWithinEveryLimit) {
  for (std::int64_t left = 1; left < std::int64_t{1} << 45; left = left * 3 / 2 + 1) {
    for (const std::int64_t transport : {std::int64_t{0}, Defaults().max_transport_bytes}) {
      ServerConfig config = Defaults();
      config.max_transport_bytes = transport;
      config.shared_memory = "named";
      FitToMemory(config, left, true);
      EXPECT_TRUE(Validate(config).ok()) << left << " " << Validate(config);
      EXPECT_GT(config.max_transport_bytes, 0);
      EXPECT_LE(config.max_request_bytes, Defaults().max_request_bytes);
      if (left > std::int64_t{64} << 20) {
        EXPECT_LE(config.max_transport_bytes + config.max_inflight_bytes / 2 + config.pool_bytes +
                      config.max_locked_shared_bytes,
                  left);
      }
    }
  }
}

TEST(FitToMemoryTest, LockedPagesFitTooWhereThereIsSharedMemory) {
  for (const std::int64_t left : {std::int64_t{1} << 20, std::int64_t{1} << 32}) {
    ServerConfig config = Defaults();
    config.shared_memory = "named";
    const std::string text = FitToMemory(config, left, true);
    EXPECT_THAT(text, HasSubstr("--max_locked_shared_bytes 8589934592 -> "));
    EXPECT_THAT(text, HasSubstr("--max_identity_locked_shared_bytes 4294967296 -> "));
    EXPECT_LE(config.max_locked_shared_bytes, std::max(left / 8, std::int64_t{2} << 20));
    EXPECT_EQ(config.max_identity_locked_shared_bytes, config.max_locked_shared_bytes);
  }
  ServerConfig little = Defaults();
  little.shared_memory = "named";
  little.max_locked_shared_bytes = 0;
  little.max_identity_locked_shared_bytes = 0;
  EXPECT_THAT(FitToMemory(little, std::int64_t{1} << 32, true), Not(HasSubstr("locked")));
  EXPECT_EQ(little.max_locked_shared_bytes, 0) << "nothing is raised";
  ServerConfig off = Defaults();
  FitToMemory(off, std::int64_t{1} << 32, true);
  EXPECT_EQ(off.max_locked_shared_bytes, Defaults().max_locked_shared_bytes);
}

TEST(FitToMemoryTest, AServerWithoutDevicesKeepsLimitsThatItDoesNotUse) {
  ServerConfig config = Defaults();
  config.shared_memory = "named";
  EXPECT_THAT(FitToMemory(config, std::int64_t{1} << 32, false), Not(HasSubstr("locked")));
  EXPECT_EQ(config.max_locked_shared_bytes, Defaults().max_locked_shared_bytes);
}

TEST(FitToMemoryTest, SaysWhatItLowers) {
  ServerConfig config = Defaults();
  const std::string text = FitToMemory(config, std::int64_t{1} << 30, true);
  EXPECT_THAT(text, HasSubstr("--max_transport_bytes 1073741824 -> 268435456"));
  EXPECT_THAT(text, HasSubstr("--max_request_bytes 268435456 -> "));
}

TEST(FitToMappingsTest, RegionsLeaveHalfOfThem) {
  ServerConfig config = Defaults();
  config.shared_memory = "named";
  EXPECT_EQ(FitToMappings(config, 65000), "");
  config.max_shared_regions = 65536;
  EXPECT_EQ(FitToMappings(config, 65000), "--max_shared_regions 65536 -> 32500");
  EXPECT_EQ(config.max_shared_regions, 32500);
  config.max_identity_shared_regions = 65536;
  EXPECT_EQ(FitToMappings(config, 65000), "--max_identity_shared_regions 65536 -> 32500");
  config.shared_memory_cuda = true;
  FitToMappings(config, 65000);
  EXPECT_EQ(config.max_shared_regions, 16250) << "more for each of a device";
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

TEST(FitToMappingsTest, LeavesOneRegionAtLeastAndChangesNothingWithoutSharedMemory) {
  ServerConfig config = Defaults();
  EXPECT_EQ(FitToMappings(config, 0), "");
  EXPECT_EQ(config.max_shared_regions, Defaults().max_shared_regions);
  config.shared_memory = "named";
  FitToMappings(config, 0);
  EXPECT_EQ(config.max_shared_regions, 1);
  EXPECT_EQ(config.max_identity_shared_regions, 1);
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

}  // namespace
}  // namespace normd

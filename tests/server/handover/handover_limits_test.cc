#include "server/handover/handover_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/net/connection_policy.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

TEST(HandoverLimitsTest, TheyAndTheConnectionsOfThePortFitTheDescriptorsThatAreLeft) {
  int decided = 0;
  for (std::int64_t descriptors = 8; descriptors <= 1 << 20;
       descriptors = descriptors * 5 / 4 + 1) {
    for (const std::int64_t open : {10, 45, 300}) {
      for (const std::int64_t regions : {1, 2, 1024, 65536}) {
        const auto limits = DecideHandoverLimits(regions, descriptors, open);
        if (!limits.ok()) continue;
        ++decided;
        EXPECT_GE(limits->without_regions, 1U);
        EXPECT_GE(limits->with_regions, 1U);
        EXPECT_GE(limits->owner_with_regions, 1U);
        EXPECT_LE(limits->owner_with_regions, limits->with_regions);
        const std::int64_t taken = open + DescriptorsOf(*limits);
        const ConnectionLimits port = DecideLimits(0, 0, descriptors, taken);
        EXPECT_LE(taken + port.connections * kDescriptorsPerConnection + kReservedDescriptors,
                  descriptors)
            << descriptors << " " << open << " " << regions;
      }
    }
  }
  EXPECT_GT(decided, 100);
}

TEST(HandoverLimitsTest, EachRegionMayHaveAConnectionWhereDescriptorsAreEnough) {
  const auto limits = DecideHandoverLimits(1024, 1 << 20, 45);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->without_regions, 256U);
  EXPECT_EQ(limits->with_regions, 1024U);
  EXPECT_EQ(limits->owner_with_regions, 1024U);
}

TEST(HandoverLimitsTest, OneOwnerLeavesAQuarterWhereTheyAreNot) {
  const auto limits = DecideHandoverLimits(1024, 1024, 45);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_LT(limits->with_regions, 200U);
  EXPECT_LE(limits->owner_with_regions, limits->with_regions * 3 / 4 + 1);
}

TEST(HandoverLimitsTest, FewerThanOnePacketMayBringAreAnError) {
  const absl::Status status = DecideHandoverLimits(1024, 256, 45).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("256 descriptors"));
}

}  // namespace
}  // namespace normd

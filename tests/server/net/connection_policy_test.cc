#include "server/net/connection_policy.h"

#include <gtest/gtest.h>

namespace normd {
namespace {

TEST(ConnectionPolicyTest, LimitsFitTheDescriptorsThatAreLeft) {
  for (const std::int64_t descriptors : {8, 64, 256, 1024, 4096, 1 << 20}) {
    for (const std::int64_t open : {10, 30, 200}) {
      for (const std::int64_t wanted : {0, 1, 100, 1 << 20}) {
        const ConnectionLimits limits = DecideLimits(wanted, 0, descriptors, open);
        EXPECT_GE(limits.connections, 1);
        EXPECT_GE(limits.peer_connections, 1);
        EXPECT_LE(limits.peer_connections, limits.connections);
        if (wanted > 0) {
          EXPECT_LE(limits.connections, wanted);
        }
        if (limits.connections > 1) {
          EXPECT_LE(limits.connections * kDescriptorsPerConnection + open, descriptors)
              << descriptors << " " << open << " " << wanted;
        }
      }
    }
  }
}

TEST(ConnectionPolicyTest, TakesWhatIsWantedWhereDescriptorsAreEnough) {
  const ConnectionLimits limits = DecideLimits(500, 20, 4096, 30);
  EXPECT_EQ(limits.connections, 500);
  EXPECT_EQ(limits.peer_connections, 20);
}

TEST(ConnectionPolicyTest, OnePeerLeavesAQuarterToOthers) {
  const ConnectionLimits limits = DecideLimits(100, 0, 4096, 30);
  EXPECT_EQ(limits.peer_connections, 75);
}

TEST(ConnectionPolicyTest, TakesUpToEachLimitAndNoFurther) {
  const ConnectionLimits limits{10, 4};
  EXPECT_EQ(DecideTaking(limits, 9, 3), Taking::kTake);
  EXPECT_EQ(DecideTaking(limits, 10, 0), Taking::kFull);
  EXPECT_EQ(DecideTaking(limits, 9, 4), Taking::kPeerFull);
  EXPECT_EQ(DecideTaking(limits, 10, 4), Taking::kFull);
}

TEST(ConnectionPolicyTest, RoomComesBackOnlyBelowNineTenths) {
  const ConnectionLimits limits{100, 75};
  EXPECT_TRUE(DecideRoom(limits, 99, true));
  EXPECT_FALSE(DecideRoom(limits, 100, true));
  EXPECT_FALSE(DecideRoom(limits, 99, false));
  EXPECT_FALSE(DecideRoom(limits, 90, false));
  EXPECT_TRUE(DecideRoom(limits, 89, false));
}

TEST(ConnectionPolicyTest, ASingleConnectionsRoomComesBack) {
  EXPECT_FALSE(DecideRoom({1, 1}, 1, true));
  EXPECT_TRUE(DecideRoom({1, 1}, 0, false));
}

}  // namespace
}  // namespace normd

#include "server/http/connection_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace normd {
namespace {

using ::testing::Optional;

constexpr ConnectionPhase kEnding = ConnectionPhase::kEnding;
constexpr ConnectionPhase kReading = ConnectionPhase::kReading;
constexpr ConnectionPhase kResponding = ConnectionPhase::kResponding;

std::size_t CountOf(const std::vector<HeldConnection>& held, const std::string& peer) {
  std::size_t count = 0;
  for (const HeldConnection& connection : held) count += connection.peer == peer ? 1 : 0;
  return count;
}

TEST(ConnectionLimitsTest, NobodyGoesWhileThereIsRoom) {
  EXPECT_EQ(MakesRoom({}, "a", {1, 1}), std::nullopt);
  const std::vector<HeldConnection> held = {{"a", kReading, 1}, {"b", kReading, 2}};
  EXPECT_EQ(MakesRoom(held, "a", {3, 2}), std::nullopt);
}

TEST(ConnectionLimitsTest, OneOfAPeersOwnGoesWhenItHasItsShare) {
  const std::vector<HeldConnection> held = {
      {"b", kEnding, 0}, {"a", kReading, 1}, {"a", kReading, 2}};
  EXPECT_THAT(MakesRoom(held, "a", {10, 2}), Optional(1u));
  EXPECT_EQ(MakesRoom(held, "b", {10, 2}), std::nullopt);
}

TEST(ConnectionLimitsTest, OneOfThePeerWithMostGoesWhenAllPlacesAreTaken) {
  const std::vector<HeldConnection> held = {
      {"a", kReading, 0}, {"b", kReading, 1}, {"b", kReading, 2}};
  EXPECT_THAT(MakesRoom(held, "c", {3, 3}), Optional(1u));
}

TEST(ConnectionLimitsTest, WhoHasNotAskedGoesBeforeWhoHasItsResponseBeforeWhoWaits) {
  std::vector<HeldConnection> held = {
      {"a", kResponding, 0}, {"a", kReading, 2}, {"a", kReading, 1}, {"a", kEnding, 3}};
  for (const std::size_t wanted : {2u, 1u, 1u, 0u}) {
    EXPECT_THAT(MakesRoom(held, "a", {1, 1}), Optional(wanted));
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(wanted));
  }
}

// Any sequence of peers and phases: nobody but the newcomer's peer or the greediest loses a place,
// and the limits hold.
TEST(ConnectionLimitsTest, ModestPeersKeepTheirPlaces) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 300; ++round) {
    const HttpConnectionLimits limits = {1 + random() % 12, 1 + random() % 6};
    std::vector<HeldConnection> held;
    for (std::uint64_t number = 0; number < 60; ++number) {
      const std::string peer(1, static_cast<char>('a' + random() % 5));
      const auto victim = MakesRoom(held, peer, limits);
      if (victim) {
        const std::string loser = held[*victim].peer;
        if (loser != peer) {
          EXPECT_EQ(held.size(), limits.all);
          for (const HeldConnection& other : held) {
            EXPECT_LE(CountOf(held, other.peer), CountOf(held, loser));
          }
        }
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(*victim));
      }
      held.push_back({peer, static_cast<ConnectionPhase>(random() % 3), number});
      ASSERT_LE(held.size(), limits.all);
      ASSERT_LE(CountOf(held, peer), limits.of_peer);
    }
  }
}

}  // namespace
}  // namespace normd

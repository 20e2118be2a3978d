#include "client/capacity/balancer.h"

#include <gtest/gtest.h>

#include <vector>

#include "client/tensor/random.h"

namespace normd::capacity {
namespace {

using client::BalancePolicy;
using client::Candidate;
using client::ServerState;

// Calls that begin and end, and servers that come and go, at random: every pick is the one of the
// client's Picker.
TEST(BalancerTest, PicksWhatTheClientPicks) {
  for (const BalancePolicy policy :
       {BalancePolicy::kRoundRobin, BalancePolicy::kLeastOutstanding}) {
    for (const std::size_t servers : {1, 2, 63, 64, 65, 200}) {
      client::SplitMix64 random(servers);
      client::Picker picker(policy);
      Balancer balancer(policy, servers);
      std::vector<Candidate> candidates(servers, {ServerState::kServing, 0});
      for (int step = 0; step < 5000; ++step) {
        const std::size_t i = random.Next() % servers;
        const std::uint64_t what = random.Next() % 8;
        if (what == 0) {
          const bool up = random.Next() % 2 == 0;
          balancer.SetUp(i, up);
          candidates[i].state = up ? ServerState::kServing : ServerState::kDown;
        } else if (what < 4) {
          if (candidates[i].outstanding == 0) continue;
          balancer.End(i);
          --candidates[i].outstanding;
        } else {
          std::optional<std::size_t> avoid;
          if (what == 7) avoid = i;
          const auto picked = balancer.Pick(avoid);
          ASSERT_EQ(picked, picker.Pick(candidates, avoid)) << servers << " servers, step " << step;
          if (!picked) continue;
          balancer.Begin(*picked);
          ++candidates[*picked].outstanding;
        }
      }
    }
  }
}

TEST(BalancerTest, TurnsBeginWhereTheyAreToldTo) {
  Balancer balancer(BalancePolicy::kRoundRobin, 3, 2);
  EXPECT_EQ(balancer.Pick(), 2u);
  EXPECT_EQ(balancer.Pick(), 0u);
}

TEST(BalancerTest, NobodyIsPickedWhereAllAreDown) {
  Balancer balancer(BalancePolicy::kLeastOutstanding, 2);
  balancer.SetUp(0, false);
  balancer.SetUp(1, false);
  EXPECT_EQ(balancer.Pick(), std::nullopt);
  balancer.SetUp(1, true);
  EXPECT_EQ(balancer.Pick(1), 1u);
}

}  // namespace
}  // namespace normd::capacity

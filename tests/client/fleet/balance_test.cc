#include "client/fleet/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace normd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ServerState kServing = ServerState::kServing;

TEST(PickerTest, RoundRobinTakesEachInTurnWhateverTheyHave) {
  Picker picker(BalancePolicy::kRoundRobin);
  const std::vector<Candidate> all = {{kServing, 9}, {kServing, 0}, {kServing, 5}};
  std::vector<std::size_t> picked;
  for (int i = 0; i < 6; ++i) picked.push_back(picker.Pick(all).value());
  EXPECT_THAT(picked, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(PickerTest, BeginsWithTheTurnThatItIsGiven) {
  const std::vector<Candidate> equal(3, {kServing, 0});
  for (const auto policy : {BalancePolicy::kRoundRobin, BalancePolicy::kLeastOutstanding}) {
    for (const std::size_t turn : {std::size_t{5}, ~std::size_t{0}}) {
      Picker picker(policy, turn);
      EXPECT_EQ(picker.Pick(equal), turn % 3);
      EXPECT_EQ(picker.Pick(equal), (turn % 3 + 1) % 3);
    }
  }
}

TEST(PickerTest, LeastOutstandingTakesTheFewestAndTurnsAmongEquals) {
  Picker picker(BalancePolicy::kLeastOutstanding);
  EXPECT_EQ(picker.Pick({{{kServing, 3}, {kServing, 1}, {kServing, 2}}}), 1U);
  const std::vector<Candidate> equal = {{kServing, 1}, {kServing, 1}, {kServing, 1}};
  std::vector<std::size_t> picked;
  for (int i = 0; i < 4; ++i) picked.push_back(picker.Pick(equal).value());
  EXPECT_THAT(picked, ElementsAre(2, 0, 1, 2));
}

TEST(PickerTest, TakesAWorseStateOnlyWhereNoneIsBetter) {
  Picker picker(BalancePolicy::kLeastOutstanding);
  EXPECT_EQ(picker.Pick({{{ServerState::kSilent, 0}, {ServerState::kUnknown, 7}}}), 1U);
  EXPECT_EQ(picker.Pick({{{ServerState::kSilent, 0}, {ServerState::kDown, 0}}}), 0U);
}

TEST(PickerTest, TakesNoneThatIsDownOrDoesNotServe) {
  Picker picker(BalancePolicy::kRoundRobin);
  EXPECT_EQ(picker.Pick({{{ServerState::kDown, 0}, {ServerState::kNotServing, 0}}}), std::nullopt);
  EXPECT_EQ(picker.Pick({}), std::nullopt);
}

TEST(PickerTest, AvoidsAServerWhileAnotherOfItsStateIsLeft) {
  Picker picker(BalancePolicy::kLeastOutstanding);
  EXPECT_EQ(picker.Pick({{{kServing, 0}, {kServing, 50}}}, 0), 1U);
  EXPECT_EQ(picker.Pick({{{kServing, 0}, {ServerState::kSilent, 0}}}, 0), 0U);
}

// Whatever the states: the one that is picked may be, and is in the best state that any has.
TEST(PickerTest, NeverPicksAWorseThanTheBestOfAThousandRandomFleets) {
  std::mt19937 random(7);
  for (const auto policy : {BalancePolicy::kRoundRobin, BalancePolicy::kLeastOutstanding}) {
    Picker picker(policy);
    for (int round = 0; round < 1000; ++round) {
      std::vector<Candidate> all(1 + random() % 8);
      ServerState best = ServerState::kDown;
      for (Candidate& one : all) {
        one = {static_cast<ServerState>(random() % 5), static_cast<int>(random() % 4)};
        best = std::min(best, one.state);
      }
      const auto picked = picker.Pick(all, random() % all.size());
      ASSERT_EQ(picked.has_value(), best < ServerState::kNotServing);
      if (picked) {
        ASSERT_EQ(all.at(*picked).state, best);
      }
    }
  }
}

TEST(BalancePolicyTest, RefusesAnUnknownName) {
  EXPECT_EQ(ParseBalancePolicy("least_outstanding").value(), BalancePolicy::kLeastOutstanding);
  EXPECT_THAT(std::string(ParseBalancePolicy("random").status().message()),
              HasSubstr("\"random\", wanted round_robin or least_outstanding"));
}

}  // namespace
}  // namespace normd::client

#include "client/fleet/server_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/fleet/addresses.h"
#include "client/fleet/balance.h"

namespace normd::client {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Nobody listens there: these tests make no calls.
const std::vector<ServerAddress> kAddresses = {{"127.0.0.1:1", ""}, {"127.0.0.1:2", ""}};

class FakeAttempt final : public Attempt {
 public:
  void Abandon() override { ++abandoned; }
  int abandoned = 0;
};

class ServerSetTest : public ::testing::Test {
 protected:
  ServerSetTest() { EXPECT_TRUE(set_.Update(kAddresses).ok()); }

  static absl::StatusOr<std::unique_ptr<Client>> Make(const ServerAddress& address) {
    return Client::Create(address.target);
  }
  Server& At(std::size_t i) { return *set_.servers().at(i); }

  ServerSet set_{BalancePolicy::kRoundRobin, /*silent_after=*/2, Make};
};

TEST_F(ServerSetTest, ServerThatMissesTwoChecksInARowLosesItsCalls) {
  const absl::Status missed = absl::DeadlineExceededError("no response");
  set_.Observe(At(0), HealthStatus::kServing);
  set_.Observe(At(1), HealthStatus::kNotServing);
  const auto server = set_.Begin(nullptr);
  ASSERT_EQ(server.get(), &At(0));
  const auto attempt = std::make_shared<FakeAttempt>();
  set_.Register(*server, attempt);
  set_.Observe(At(0), missed);
  set_.Observe(At(0), HealthStatus::kServing);
  set_.Observe(At(0), missed);
  EXPECT_EQ(attempt->abandoned, 0);
  set_.Observe(At(0), missed);
  EXPECT_EQ(attempt->abandoned, 1);
  EXPECT_EQ(set_.counts().front().state, ServerState::kSilent);
  set_.End(*server, attempt, absl::CancelledError());
  set_.Observe(At(0), missed);
  EXPECT_EQ(attempt->abandoned, 1);
  set_.Observe(At(0), HealthStatus::kServing);
  EXPECT_EQ(set_.counts().front().state, ServerState::kServing);
}

TEST_F(ServerSetTest, UnavailableTakesAServerOutUntilACheckSaysOtherwise) {
  set_.Observe(At(0), HealthStatus::kServing);
  set_.Observe(At(1), HealthStatus::kServing);
  const auto server = set_.Begin(nullptr);
  EXPECT_TRUE(set_.End(*server, nullptr, absl::UnavailableError("draining")));
  EXPECT_NE(set_.Begin(nullptr), server);
  EXPECT_NE(set_.Begin(nullptr), server);
  set_.Observe(*server, HealthStatus::kServing);
  EXPECT_EQ(set_.Begin(nullptr), server);
}

TEST_F(ServerSetTest, AnotherErrorTakesNoServerOut) {
  const auto server = set_.Begin(nullptr);
  EXPECT_FALSE(set_.End(*server, nullptr, absl::InternalError("a device")));
  std::int64_t failed = 0;
  for (const ServerCounts& one : set_.counts()) {
    EXPECT_EQ(one.state, ServerState::kUnknown);
    failed += one.failed;
  }
  EXPECT_EQ(failed, 1);
}

TEST_F(ServerSetTest, ServerThatTellsNobodyOfItsHealthIsTried) {
  set_.Observe(At(0), absl::UnimplementedError(""));
  set_.Observe(At(1), absl::PermissionDeniedError(""));
  for (const ServerCounts& one : set_.counts()) EXPECT_EQ(one.state, ServerState::kServing);
}

TEST_F(ServerSetTest, UpdateKeepsWhatItKnowsAndWhatIsUnderWay) {
  set_.Observe(At(0), HealthStatus::kServing);
  const auto kept = set_.servers().front();
  const auto gone = set_.servers().back();
  ASSERT_TRUE(set_.Update({{"127.0.0.1:3", ""}, kAddresses[0]}).ok());
  EXPECT_EQ(set_.servers().back(), kept);
  EXPECT_EQ(set_.counts().back().state, ServerState::kServing);
  set_.Observe(*gone, HealthStatus::kServing);
  EXPECT_EQ(set_.servers().size(), 2U);
}

TEST_F(ServerSetTest, UpdateThatFailsChangesNothing) {
  EXPECT_FALSE(set_.Update({}).ok());
  EXPECT_FALSE(set_.Update({{"no port", ""}}).ok());
  EXPECT_EQ(set_.servers().size(), 2U);
}

TEST_F(ServerSetTest, NobodyServesIsToldWithEachServersReason) {
  set_.Observe(At(0), absl::UnavailableError("connection refused"));
  set_.Observe(At(1), HealthStatus::kNotServing);
  EXPECT_EQ(set_.Begin(nullptr), nullptr);
  EXPECT_FALSE(set_.WaitUntilServing(kNever));
  EXPECT_THAT(std::string(set_.Unavailable().message()),
              HasSubstr("none of 2 servers can take the call: 127.0.0.1:1 is down, connection "
                        "refused; 127.0.0.1:2 is not serving, it says NOT_SERVING"));
}

std::vector<std::string> Targets(const std::vector<ServerAddress>& addresses) {
  std::vector<std::string> targets;
  for (const ServerAddress& one : addresses) targets.push_back(one.target);
  return targets;
}

TEST(ParseServersTest, TakesAddressesNamesAndSockets) {
  const auto servers = ParseServers("127.0.0.1:1,[::1]:2,dns:///normd.example:3,unix:/run/a.sock");
  ASSERT_TRUE(servers.ok()) << servers.status();
  ASSERT_EQ(servers->size(), 4U);
  EXPECT_EQ((*servers)[1].host, "::1");
  EXPECT_EQ((*servers)[2].host, "normd.example");
  EXPECT_EQ((*servers)[2].port, "3");
  EXPECT_EQ((*servers)[3].text, "unix:/run/a.sock");
}

TEST(ParseServersTest, NamesTheOneThatIsNoAddress) {
  for (const char* wrong : {"", "host", "host:", ":1", "host:0", "host:65536", "host:x", "[::1:2",
                            "dns://8.8.8.8/host:1", "a:1,,b:2"}) {
    const auto servers = ParseServers(wrong);
    ASSERT_FALSE(servers.ok()) << wrong;
    EXPECT_THAT(std::string(servers.status().message()), HasSubstr("wanted an address")) << wrong;
  }
  EXPECT_THAT(std::string(ParseServers("a:1,b:2,a:1").status().message()),
              HasSubstr("\"a:1\" comes twice"));
}

TEST(ResolveServersTest, GivesEveryAddressOnceWithTheNameItHad) {
  const auto servers = ParseServers("127.0.0.1:7,localhost:7,unix:/run/a.sock").value();
  const auto found = ResolveServers(servers);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->front().target, "127.0.0.1:7");
  EXPECT_THAT(Targets(*found), Contains("127.0.0.1:7").Times(1));
  EXPECT_EQ(found->back().target, "unix:/run/a.sock");
}

TEST(ResolveServersTest, LeavesOutANameWithoutAnAddressUnlessAllAre) {
  const auto some = ResolveServers(ParseServers("nobody.invalid:1,127.0.0.1:2").value());
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(Targets(*some), ElementsAre("127.0.0.1:2"));
  const auto none = ResolveServers(ParseServers("nobody.invalid:1").value());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("server: \"nobody.invalid:1\" has no address: "));
}

TEST(CanChangeTest, OnlyNamesCan) {
  EXPECT_FALSE(CanChange(ParseServers("127.0.0.1:1,[::1]:1,unix:/a").value()));
  EXPECT_TRUE(CanChange(ParseServers("127.0.0.1:1,localhost:1").value()));
}

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

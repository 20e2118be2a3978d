#include "client/fleet/server_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace normd::client {
namespace {

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

}  // namespace
}  // namespace normd::client

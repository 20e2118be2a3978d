#include "client/fleet/fleet_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "client/fleet/retry.h"
#include "client/tensor/random.h"
#include "tests/support/fake_norm_service.h"

namespace normd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Duration kLong = seconds(30);

// What calls came to.
class Results {
 public:
  Caller::Done Take() {
    return [this](absl::StatusOr<NormalizeResponse> response) {
      MutexLock lock(mutex_);
      statuses_.push_back(response.status());
      changed_.SignalAll();
    };
  }
  std::vector<absl::Status> Wait(std::size_t count) {
    MutexLock lock(mutex_);
    while (statuses_.size() < count) changed_.Wait(mutex_);
    return statuses_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
};

class FleetClientTest : public ::testing::Test {
 protected:
  FleetClientTest() {
    v1::ModelConfig config;
    config.mutable_instance_norm()->set_channels(4);
    for (int i = 0; i < 3; ++i) {
      servers_.push_back(std::make_unique<test::FakeNormService>());
      servers_.back()->AddModel("norm", config);
      servers_.back()->SetHealth("", true);
    }
    options_.health_interval = milliseconds(50);
    options_.health_timeout = seconds(5);
  }

  std::string Servers() const {
    std::vector<std::string> targets;
    for (const auto& server : servers_) targets.push_back(server->target());
    return absl::StrJoin(targets, ",");
  }
  std::unique_ptr<FleetClient> Create() {
    auto fleet = FleetClient::Create(Servers(), options_);
    EXPECT_TRUE(fleet.ok()) << fleet.status();
    EXPECT_TRUE((*fleet)->Connect(kLong));
    return *std::move(fleet);
  }
  // Waits until the fleet knows all of its servers' states to be these.
  static void AwaitStates(const FleetClient& fleet, const std::vector<ServerState>& wanted) {
    for (;;) {
      std::vector<ServerState> states;
      for (const ServerCounts& one : fleet.counts().servers) states.push_back(one.state);
      if (states == wanted) return;
      std::this_thread::sleep_for(milliseconds(2));  // A check is under way.
    }
  }
  static EncodedRequest Request() {
    NormalizeRequest request;
    request.model = "norm";
    const Shape shape = Shape::Create({1, 4, 8}).value();
    request.inputs = {RandomTensor(norm::DType::kFloat32, shape, 0, 1, 1).value().named()};
    return EncodedRequest::Create(request).value();
  }
  static absl::Status Call(FleetClient& fleet, Duration timeout = kLong) {
    Results results;
    fleet.NormalizeAsync(Request(), timeout, results.Take());
    return results.Wait(1).front();
  }

  std::vector<std::unique_ptr<test::FakeNormService>> servers_;
  FleetOptions options_;
};

TEST_F(FleetClientTest, RoundRobinGivesEachServerTheSame) {
  const auto fleet = Create();
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(Call(*fleet).ok());
  for (const auto& server : servers_) EXPECT_EQ(server->calls(), 10);
  EXPECT_EQ(fleet->counts().retries, 0);
}

TEST_F(FleetClientTest, LeastOutstandingLeavesAServerThatHoldsItsCalls) {
  options_.balance = BalancePolicy::kLeastOutstanding;
  const auto fleet = Create();
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  servers_[0]->Hold();
  Results held;
  fleet->NormalizeAsync(Request(), kLong, held.Take());
  fleet->NormalizeAsync(Request(), kLong, held.Take());
  fleet->NormalizeAsync(Request(), kLong, held.Take());
  servers_[0]->WaitForCalls(1);
  held.Wait(2);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Call(*fleet).ok());
  EXPECT_EQ(servers_[0]->calls(), 1);
  servers_[0]->Release();
  held.Wait(3);
}

TEST_F(FleetClientTest, ServerThatStopsLosesNoCall) {
  const auto fleet = Create();
  Results results;
  constexpr int kCalls = 60;
  for (int i = 0; i < kCalls; ++i) {
    if (i == kCalls / 2) servers_[1]->Stop();
    fleet->NormalizeAsync(Request(), kLong, results.Take());
  }
  for (const absl::Status& status : results.Wait(kCalls)) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(FleetClientTest, UnavailableIsTriedElsewhere) {
  servers_[0]->FailFrom(0, absl::UnavailableError("draining"));
  servers_[1]->FailFrom(0, absl::UnavailableError("draining"));
  const auto fleet = Create();
  EXPECT_TRUE(Call(*fleet).ok());
  EXPECT_EQ(servers_[2]->calls(), 1);
}

TEST_F(FleetClientTest, ServerThatDoesNotServeGetsNoCalls) {
  servers_[0]->SetHealth("", false);
  const auto fleet = Create();
  AwaitStates(*fleet, {ServerState::kNotServing, ServerState::kServing, ServerState::kServing});
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(Call(*fleet).ok());
  EXPECT_EQ(servers_[0]->calls(), 0);
  servers_[0]->SetHealth("", true);
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(Call(*fleet).ok());
  EXPECT_EQ(servers_[0]->calls(), 4);
}

TEST_F(FleetClientTest, RetriesNothingThatIsTheCallsFault) {
  for (const auto& server : servers_) server->FailFrom(0, absl::InvalidArgumentError("no"));
  const auto fleet = Create();
  EXPECT_EQ(Call(*fleet).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fleet->counts().attempts, 1);
}

TEST_F(FleetClientTest, FullServerIsLeftForAnotherAfterItsHint) {
  absl::Status full = absl::ResourceExhaustedError("full");
  full.SetPayload("grpc-retry-pushback-ms", absl::Cord("30"));
  servers_[0]->FailFrom(0, full);
  options_.balance = BalancePolicy::kLeastOutstanding;
  const auto fleet = Create();
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const std::int64_t before = fleet->counts().retries;
    ASSERT_TRUE(Call(*fleet).ok());
    const bool is_retried = fleet->counts().retries > before;
    EXPECT_TRUE(!is_retried || std::chrono::steady_clock::now() - begin >= milliseconds(30));
  }
  EXPECT_GE(fleet->counts().retries, 1);
  EXPECT_EQ(fleet->counts().servers[0].state, ServerState::kServing);
}

TEST_F(FleetClientTest, FullServerWithoutAHintIsNotAskedAgain) {
  for (const auto& server : servers_) server->FailFrom(0, absl::ResourceExhaustedError("full"));
  const auto fleet = Create();
  EXPECT_EQ(Call(*fleet).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fleet->counts().attempts, 1);
}

TEST_F(FleetClientTest, NoServerAtAllIsToldWithoutAStorm) {
  for (const auto& server : servers_) server->Stop();
  auto fleet = FleetClient::Create(Servers(), options_).value();
  EXPECT_FALSE(fleet->Connect(kLong));
  const absl::Status status = Call(*fleet);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("none of 3 servers can take the call: ", servers_[0]->target(),
                                     " is down")));
  EXPECT_EQ(fleet->counts().attempts, 0);
  EXPECT_LE(fleet->counts().retries, options_.retry.max_attempts);
}

TEST_F(FleetClientTest, RetriesEndWithTheBudget) {
  options_.retry.max_tokens = 7;
  options_.retry.max_attempts = 3;
  for (const auto& server : servers_) server->FailFrom(0, absl::UnavailableError("no"));
  const auto fleet = Create();
  Results results;
  constexpr int kCalls = 50;
  for (int i = 0; i < kCalls; ++i) fleet->NormalizeAsync(Request(), kLong, results.Take());
  for (const absl::Status& status : results.Wait(kCalls)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(fleet->counts().retries, 7);
  EXPECT_GE(fleet->counts().over_budget, 1);
  EXPECT_LE(fleet->counts().attempts, kCalls + 7);
}

TEST_F(FleetClientTest, HedgeTakesTheFirstResponse) {
  options_.hedge_after = milliseconds(20);
  const auto fleet = Create();
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  servers_[0]->Hold();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(*fleet).ok());
  EXPECT_GE(fleet->counts().hedges, 1);
  servers_[0]->Release();
}

TEST_F(FleetClientTest, HedgesNothingByDefault) {
  const auto fleet = Create();
  AwaitStates(*fleet, std::vector<ServerState>(3, ServerState::kServing));
  servers_[0]->Hold();
  Results results;
  for (int i = 0; i < 3; ++i) fleet->NormalizeAsync(Request(), kLong, results.Take());
  results.Wait(2);
  servers_[0]->WaitForCalls(1);
  EXPECT_EQ(fleet->counts().hedges, 0);
  servers_[0]->Release();
  results.Wait(3);
}

TEST_F(FleetClientTest, CancelledCallSaysSoOnce) {
  const auto fleet = Create();
  for (const auto& server : servers_) server->Hold();
  Results results;
  const auto call = fleet->NormalizeAsync(Request(), kLong, results.Take());
  call->Cancel();
  EXPECT_EQ(results.Wait(1).front().code(), absl::StatusCode::kCancelled);
  for (const auto& server : servers_) server->Release();
}

TEST_F(FleetClientTest, CallsOutliveTheClient) {
  auto fleet = Create();
  for (const auto& server : servers_) server->Hold();
  Results results;
  for (int i = 0; i < 3; ++i) fleet->NormalizeAsync(Request(), kLong, results.Take());
  fleet.reset();
  for (const auto& server : servers_) server->Release();
  for (const absl::Status& status : results.Wait(3)) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(FleetClientTest, FollowsTheAddressesOfAName) {
  const std::string first = servers_[0]->target();
  const std::string second = servers_[1]->target();
  Mutex mutex;
  std::vector<ServerAddress> told = {{first, ""}};
  options_.resolve_interval = milliseconds(1);
  options_.resolver = [&](const std::vector<ServerName>&) {
    MutexLock lock(mutex);
    return told;
  };
  auto fleet = FleetClient::Create("dns:///normd.example:1", options_).value();
  ASSERT_TRUE(fleet->Connect(kLong));
  {
    MutexLock lock(mutex);
    told = {{second, ""}};
  }
  while (fleet->counts().servers.front().target != second) {
    std::this_thread::sleep_for(milliseconds(5));  // Names are asked for once a second at most.
  }
  EXPECT_TRUE(Call(*fleet).ok());
  EXPECT_EQ(servers_[0]->calls(), 0);
  EXPECT_EQ(servers_[1]->calls(), 1);
}

TEST_F(FleetClientTest, SaysWhatIsWrongWithItsOptions) {
  options_.silent_after = 0;
  EXPECT_THAT(std::string(FleetClient::Create(Servers(), options_).status().message()),
              HasSubstr("silent_after: 0, wanted 1 or more"));
  EXPECT_THAT(std::string(FleetClient::Create("nobody.invalid:1").status().message()),
              HasSubstr("has no address"));
}

absl::Status WithHint(absl::Status status, const char* ms) {
  status.SetPayload("grpc-retry-pushback-ms", absl::Cord(ms));
  return status;
}

TEST(MayRetryTest, RetriesUnavailableAtOnceAndThenWithAGrowingPause) {
  const RetryPolicy policy;
  const absl::Status gone = absl::UnavailableError("gone");
  Duration delay{-1};
  ASSERT_TRUE(MayRetry(policy, gone, 1, 1, delay));
  EXPECT_EQ(delay, Duration{0});
  Duration before{0};
  for (int attempts = 2; attempts < policy.max_attempts; ++attempts) {
    ASSERT_TRUE(MayRetry(policy, gone, attempts, 1, delay));
    EXPECT_GT(delay, before);
    before = delay;
  }
  ASSERT_TRUE(MayRetry(policy, gone, 2, 0, delay));
  EXPECT_EQ(delay, milliseconds(10));
}

TEST(MayRetryTest, RetriesAsStatusAndHintSay) {
  const absl::Status gone = absl::UnavailableError("gone");
  const absl::Status full = absl::ResourceExhaustedError("full");
  const absl::Status failed = absl::InternalError("failed");
  struct Case {
    absl::Status status;
    int attempts;
    double jitter;
    std::optional<Duration> delay;  // Null: it is not tried again.
  };
  for (const Case& one :
       {Case{WithHint(gone, "500"), 1, 0, milliseconds(500)}, Case{gone, 5, 0, std::nullopt},
        Case{full, 1, 0, std::nullopt}, Case{WithHint(full, "100"), 1, 0, milliseconds(100)},
        Case{WithHint(full, "100"), 1, 1, milliseconds(150)}, Case{failed, 1, 1, std::nullopt},
        Case{WithHint(failed, "0"), 4, 1, Duration{0}},
        Case{WithHint(failed, "0"), 5, 1, std::nullopt},
        // A hint that is not a number.
        Case{WithHint(gone, "-1"), 1, 0, std::nullopt},
        Case{WithHint(gone, "soon"), 1, 0, std::nullopt}}) {
    Duration delay{-1};
    EXPECT_EQ(MayRetry(RetryPolicy(), one.status, one.attempts, one.jitter, delay),
              one.delay.has_value())
        << one.status << " " << one.attempts;
    EXPECT_EQ(delay, one.delay.value_or(delay)) << one.status << " " << one.jitter;
  }
}

TEST(MayRetryTest, PausesNoLongerThanTheLongest) {
  RetryPolicy policy;
  policy.max_attempts = 100;
  Duration delay{0};
  ASSERT_TRUE(MayRetry(policy, absl::UnavailableError(""), 90, 1, delay));
  EXPECT_EQ(delay, policy.max_backoff);
}

TEST(MayRetryTest, RetriesNothingElse) {
  Duration delay{0};
  for (int code = 1; code <= 16; ++code) {
    const auto one = static_cast<absl::StatusCode>(code);
    if (one == absl::StatusCode::kUnavailable) continue;
    EXPECT_FALSE(MayRetry(RetryPolicy(), absl::Status(one, ""), 1, 0, delay)) << code;
  }
}

TEST(RetryBudgetTest, GivesItsBurstAndThenAShareOfTheSuccesses) {
  RetryPolicy policy;
  policy.max_tokens = 3;
  policy.token_ratio = 0.25;
  RetryBudget budget(policy);
  EXPECT_TRUE(budget.Take() && budget.Take() && budget.Take());
  EXPECT_FALSE(budget.Take());
  for (int i = 0; i < 3; ++i) budget.OnSuccess();
  EXPECT_FALSE(budget.Take());
  budget.OnSuccess();
  EXPECT_TRUE(budget.Take());
  for (int i = 0; i < 1000; ++i) budget.OnSuccess();
  int taken = 0;
  while (budget.Take()) ++taken;
  EXPECT_EQ(taken, 3);
}

TEST(RetryPolicyTest, NamesTheFieldThatIsWrong) {
  RetryPolicy policy;
  EXPECT_TRUE(CheckRetryPolicy(policy).ok());
  policy.max_attempts = 0;
  EXPECT_THAT(std::string(CheckRetryPolicy(policy).message()),
              HasSubstr("max_attempts: 0, wanted 1 to 100"));
  policy = {};
  policy.token_ratio = -1;
  EXPECT_THAT(std::string(CheckRetryPolicy(policy).message()), HasSubstr("token_ratio: -1"));
}

}  // namespace
}  // namespace normd::client

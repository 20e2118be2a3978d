#include "client/capacity/fleet_simulation.h"

#include <gtest/gtest.h>

#include <memory>

#include "client/tensor/random.h"

namespace normd::capacity {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr SimulationTimes kTimes = {seconds(1), seconds(20)};

FleetModel Fleet(std::size_t replicas) {
  FleetModel model;
  model.replicas = replicas;
  model.replica.max_batch_requests = 8;
  model.lane = LaneModel::Exactly(milliseconds(10), milliseconds(1));
  model.beside = Quantiles(milliseconds(2));
  return model;
}

SimulationResult Simulate(const FleetModel& model, double rate, std::uint64_t seed = 1) {
  const auto arrivals = load::PoissonArrivals(rate, seed);
  return SimulateFleet(model, *arrivals, kTimes, seed);
}

TEST(FleetSimulationTest, ALoneRequestTakesItsLaneAndWhatIsBeside) {
  const SimulationResult result = Simulate(Fleet(4), 2);
  EXPECT_EQ(result.response_time.min(), milliseconds(13));
  EXPECT_EQ(result.response_time.Percentile(90), milliseconds(13));
}

TEST(FleetSimulationTest, TheSameSeedGivesTheSameResult) {
  EXPECT_EQ(Simulate(Fleet(3), 500).response_time.sum(),
            Simulate(Fleet(3), 500).response_time.sum());
  EXPECT_NE(Simulate(Fleet(3), 500, 1).response_time.sum(),
            Simulate(Fleet(3), 500, 2).response_time.sum());
}

// Whatever happens, each request is answered, refused or lost, once.
TEST(FleetSimulationTest, EveryRequestEndsOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    client::SplitMix64 random(seed);
    FleetModel model = Fleet(1 + random.Next() % 5);
    model.replica.lanes = static_cast<int>(1 + random.Next() % 3);
    model.replica.inline_lanes = static_cast<int>(random.Next() % 2);
    model.replica.max_queue_requests = static_cast<std::int64_t>(1 + random.Next() % 100);
    if (random.Next() % 2 == 0) model.replica.max_queue_delay = milliseconds(5);
    model.clients = static_cast<int>(1 + random.Next() % 4);
    if (random.Next() % 2 == 0) model.balance = client::BalancePolicy::kRoundRobin;
    const OutageKind kind = random.Next() % 2 == 0 ? OutageKind::kCrash : OutageKind::kHang;
    model.outages = RandomOutages({kind, seconds(3), milliseconds(random.Next() % 4000)},
                                  model.replicas, seconds(21), seed);
    const SimulationResult result =
        Simulate(model, 100.0 * static_cast<double>(1 + random.Next() % 10), seed);
    ASSERT_GT(result.requests, 0);
    ASSERT_EQ(result.response_time.count() + result.refused + result.lost, result.requests)
        << "seed " << seed;
    std::int64_t in_parts = 0;
    for (const load::Histogram& part : result.parts) in_parts += part.count();
    ASSERT_EQ(in_parts, result.response_time.count()) << "seed " << seed;
  }
}

TEST(FleetSimulationTest, ACrashCostsRetriesAndNoRequestWhereOthersAreUp) {
  FleetModel model = Fleet(3);
  for (int i = 0; i < 10; ++i) {
    model.outages.push_back({static_cast<std::size_t>(i % 3), OutageKind::kCrash,
                             milliseconds(2000 * i + 1500), milliseconds(800)});
  }
  const SimulationResult result = Simulate(model, 900);
  EXPECT_EQ(result.lost, 0);
  EXPECT_GT(result.retries, 10);
}

TEST(FleetSimulationTest, WithoutRetriesACrashCostsWhatTheReplicaHad) {
  FleetModel model = Fleet(3);
  model.max_attempts = 1;
  model.outages = {{0, OutageKind::kCrash, seconds(5), seconds(1)}};
  const SimulationResult result = Simulate(model, 900);
  EXPECT_GT(result.lost, 0);
  // Both lanes' batches, what waits and what is on its way.
  EXPECT_LT(result.lost, 60);
}

TEST(FleetSimulationTest, WithNobodyUpRequestsAreLostAfterTheirAttempts) {
  FleetModel model = Fleet(2);
  model.outages = {{0, OutageKind::kCrash, seconds(5), seconds(3)},
                   {1, OutageKind::kCrash, seconds(5), seconds(3)}};
  const SimulationResult result = Simulate(model, 200);
  // About those of three seconds; the attempts reach over less than a second.
  EXPECT_GT(result.lost, 350);
  EXPECT_LT(result.lost, 750);
}

// Until it is detected a hang holds up what the replica has; then that goes elsewhere.
TEST(FleetSimulationTest, AHangIsFeltUntilItIsDetected) {
  FleetModel model = Fleet(4);
  model.balance = client::BalancePolicy::kRoundRobin;
  model.outages = {{0, OutageKind::kHang, seconds(5), seconds(10)}};
  const SimulationResult result = Simulate(model, 400);
  EXPECT_EQ(result.lost, 0);
  EXPECT_GT(result.response_time.max(), milliseconds(2500));
  EXPECT_LT(result.response_time.max(), milliseconds(2700));
  // One in four of those that came in 2.5 s.
  const std::int64_t slow =
      result.response_time.count() - result.response_time.CountAtMost(milliseconds(200));
  EXPECT_NEAR(static_cast<double>(slow), 0.25 * 2.3 * 400, 60);
}

TEST(FleetSimulationTest, AHangThatEndsBeforeItIsDetectedIsOnlyADelay) {
  FleetModel model = Fleet(1);
  model.outages = {{0, OutageKind::kHang, seconds(5), seconds(1)}};
  const SimulationResult result = Simulate(model, 200);
  EXPECT_EQ(result.retries, 0);
  EXPECT_GT(result.response_time.max(), milliseconds(990));
  EXPECT_LT(result.response_time.max(), milliseconds(1300));
}

TEST(FleetSimulationTest, AFullQueueRefuses) {
  FleetModel model = Fleet(1);
  model.replica.max_queue_requests = 16;
  const SimulationResult result = Simulate(model, 2000);
  // Two lanes do 8 in 18 ms each.
  const double answered = static_cast<double>(result.response_time.count()) / 20;
  EXPECT_NEAR(answered / (2 * 8 / 18e-3), 1, 0.03);
  EXPECT_EQ(result.lost, 0);
}

TEST(FleetSimulationTest, InlineLanesTakeWhatComesWhileNothingWaits) {
  FleetModel model = Fleet(1);
  model.replica.inline_lanes = 16;
  const SimulationResult result = Simulate(model, 50);
  EXPECT_EQ(result.busy_share, 0);
  EXPECT_EQ(result.MeanBatchRequests(), 1);
}

TEST(OutagesTest, HaveTheirRateAndLeaveTimeBetweenThem) {
  const auto outages =
      RandomOutages({OutageKind::kHang, seconds(90), seconds(10)}, 100, std::chrono::hours(1), 3);
  EXPECT_NEAR(static_cast<double>(outages.size()), 100 * 36, 250);
  for (std::size_t i = 1; i < outages.size(); ++i) {
    ASSERT_GE(outages[i].begin, outages[i - 1].begin);
  }
}

}  // namespace
}  // namespace normd::capacity

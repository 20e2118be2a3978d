// The simulation against queues whose answer is known.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "client/capacity/fleet_simulation.h"

namespace normd::capacity {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kService = milliseconds(1);
constexpr double kServiceS = 1e-3;

double S(Duration d) { return std::chrono::duration<double>(d).count(); }

FleetModel Queue(std::size_t replicas, int lanes, const LaneModel& lane) {
  FleetModel model;
  model.replicas = replicas;
  model.replica.lanes = lanes;
  model.replica.max_queue_requests = 1 << 30;
  model.lane = lane;
  model.clients = 1;
  model.balance = client::BalancePolicy::kRoundRobin;
  return model;
}

// Over a million requests, at `load` of what all lanes can do.
SimulationResult Simulate(const FleetModel& model, double load) {
  const double rate = load * static_cast<double>(model.replicas) * model.replica.lanes / kServiceS;
  const auto arrivals = load::PoissonArrivals(rate, 7);
  const SimulationTimes times = {
      seconds(5), std::chrono::duration_cast<Duration>(std::chrono::duration<double>(1e6 / rate))};
  return SimulateFleet(model, *arrivals, times, 11);
}

// The times of an M/M/1 queue are exponentially distributed, with rate mu - lambda.
TEST(ClosedFormsTest, OneLaneOfExponentialTimesIsMM1) {
  for (const double load : {0.3, 0.6, 0.8}) {
    const load::Histogram times =
        Simulate(Queue(1, 1, LaneModel::Exponential(kService)), load).response_time;
    const double mean = kServiceS / (1 - load);
    EXPECT_NEAR(S(times.mean()) / mean, 1, 0.04) << load;
    EXPECT_NEAR(S(times.Percentile(50)) / (mean * std::log(2)), 1, 0.04) << load;
    EXPECT_NEAR(S(times.Percentile(99)) / (mean * std::log(100)), 1, 0.06) << load;
  }
}

// Pollaczek and Khinchine: a wait of load / (2 (1 - load)) service times in the mean.
TEST(ClosedFormsTest, OneLaneOfEqualTimesIsMD1) {
  for (const double load : {0.3, 0.6, 0.9}) {
    const load::Histogram times =
        Simulate(Queue(1, 1, LaneModel::Exactly(kService, Duration{0})), load).response_time;
    const double mean = kServiceS * (1 + load / (2 * (1 - load)));
    EXPECT_NEAR(S(times.mean()) / mean, 1, 0.04) << load;
    // Whoever comes to an idle lane, a share of 1 - load, does not wait.
    EXPECT_NEAR(
        static_cast<double>(times.CountAtMost(kService)) / static_cast<double>(times.count()),
        1 - load, 0.01)
        << load;
  }
}

// Erlang's C: the share that waits, each for an exponentially distributed time of rate
// c mu - lambda.
TEST(ClosedFormsTest, SeveralLanesAreMMc) {
  constexpr int kLanes = 4;
  constexpr double kLoad = 0.8;
  double term = 1;
  double sum = 0;
  for (int k = 0; k < kLanes; ++k) {
    sum += term;
    term *= kLoad * kLanes / (k + 1);
  }
  const double waits = term / (1 - kLoad) / (sum + term / (1 - kLoad));
  const double wait = waits * kServiceS / (kLanes * (1 - kLoad));
  const SimulationResult result =
      Simulate(Queue(1, kLanes, LaneModel::Exponential(kService)), kLoad);
  EXPECT_NEAR(S(result.response_time.mean()) / (kServiceS + wait), 1, 0.03);
  EXPECT_NEAR(result.busy_share, kLoad, 0.01);
}

// In turn to k servers, each gets every k-th request: E_k/M/1, whose times are exponentially
// distributed with rate mu (1 - sigma), where sigma = (lambda / (lambda + mu (1 - sigma)))^k and
// lambda is that of all.
TEST(ClosedFormsTest, RoundRobinOverExponentialServersIsEkM1) {
  constexpr std::size_t kServers = 8;
  constexpr double kLoad = 0.8;
  const double lambda = kLoad * kServers;
  double sigma = 0.5;
  for (int i = 0; i < 1000; ++i) {
    sigma = std::pow(lambda / (lambda + 1 - sigma), static_cast<double>(kServers));
  }
  const load::Histogram times =
      Simulate(Queue(kServers, 1, LaneModel::Exponential(kService)), kLoad).response_time;
  const double mean = kServiceS / (1 - sigma);
  EXPECT_NEAR(S(times.mean()) / mean, 1, 0.03);
  EXPECT_NEAR(S(times.Percentile(99)) / (mean * std::log(100)), 1, 0.06);
}

// To servers that take equally long, turns bring a request to the one that is free first, and so do
// the fewest calls: M/D/c, whose share that waits is near Erlang's C, 0.174 of 4 servers at half
// load. Where times differ, turns send requests to busy servers while others are idle.
TEST(ClosedFormsTest, LeastOutstandingIsNoWorseThanTurnsAndBetterWhereTimesDiffer) {
  FleetModel model = Queue(4, 1, LaneModel::Exactly(kService, Duration{0}));
  model.balance = client::BalancePolicy::kLeastOutstanding;
  const load::Histogram least = Simulate(model, 0.5).response_time;
  EXPECT_NEAR(static_cast<double>(least.CountAtMost(kService)) / static_cast<double>(least.count()),
              1 - 0.174, 0.02);
  model.balance = client::BalancePolicy::kRoundRobin;
  EXPECT_EQ(Simulate(model, 0.5).response_time.sum(), least.sum());

  model.lane = LaneModel::Exponential(kService);
  const load::Histogram turns = Simulate(model, 0.8).response_time;
  model.balance = client::BalancePolicy::kLeastOutstanding;
  const load::Histogram fewest = Simulate(model, 0.8).response_time;
  EXPECT_LT(S(fewest.mean()), 0.8 * S(turns.mean()));
}

// Batches of up to b in base + n each: more than b / (base + b each) cannot be done, and that much
// is.
TEST(ClosedFormsTest, FullBatchesBoundTheRate) {
  FleetModel model = Queue(1, 1, LaneModel::Exactly(milliseconds(4), milliseconds(1)));
  model.replica.max_batch_requests = 8;
  EXPECT_NEAR(model.lane.MaxRate(8), 8 / 12e-3, 1e-6);
  const auto arrivals = load::ConstantArrivals(2 * model.lane.MaxRate(8));
  const SimulationTimes times = {Duration{0}, seconds(10)};
  const SimulationResult result = SimulateFleet(model, *arrivals, times, 1);
  EXPECT_NEAR(result.MeanBatchRequests(), 8, 0.01);
  EXPECT_NEAR(result.busy_share, 1, 0.01);
  // The last of twice as many as can be done in 10 s is answered after 20.
  EXPECT_NEAR(S(result.response_time.max()), 10, 0.1);
}

// The turnaround holds the lane, and not the response.
TEST(ClosedFormsTest, ATurnaroundIsPartOfTheLanesTimeAndNotOfTheResponses) {
  FleetModel model = Queue(1, 1, LaneModel::Exactly(milliseconds(9), Duration{0}));
  model.lane.set_turnaround(milliseconds(1));
  EXPECT_NEAR(model.lane.MaxRate(1), 100, 1e-6);
  const auto arrivals = load::PoissonArrivals(60, 5);
  const SimulationTimes times = {seconds(5), seconds(10'000)};
  const SimulationResult result = SimulateFleet(model, *arrivals, times, 1);
  EXPECT_NEAR(result.busy_share, 0.6, 0.01);
  EXPECT_EQ(result.response_time.min(), milliseconds(9));
  // The wait of an M/D/1 queue of 10 ms at a load of 0.6.
  EXPECT_NEAR(S(result.response_time.mean()), 9e-3 + 10e-3 * 0.6 / (2 * 0.4), 3e-4);
}

}  // namespace
}  // namespace normd::capacity

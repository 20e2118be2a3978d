// A simulated replica forms the batches that the server's own policy forms.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "client/capacity/fleet_simulation.h"
#include "server/batching/batch_policy.h"

namespace normd::capacity {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kBase = milliseconds(3);
constexpr Duration kEach = microseconds(700);

// The response times of one lane that asks DecideBatch, in the order of arrival.
std::vector<Duration> ByPolicy(const std::vector<Duration>& arrivals, const BatchLimits& limits) {
  std::vector<Duration> times;
  Duration free{0};
  while (times.size() < arrivals.size()) {
    const std::size_t front = times.size();
    Duration now = std::max(free, arrivals[front]);
    for (;;) {
      std::vector<WaitingRequest> waiting;
      for (std::size_t i = front; i < arrivals.size() && arrivals[i] <= now; ++i) {
        waiting.push_back({1, 1, TimePoint(arrivals[i]), Priority::kNormal});
      }
      const BatchDecision decision = DecideBatch(waiting, limits, TimePoint(now), false);
      if (decision.take == 0) {
        const std::size_t next = front + waiting.size();
        now = decision.ask_again.time_since_epoch();
        if (next < arrivals.size()) now = std::min(now, arrivals[next]);
        continue;
      }
      free = now + kBase + kEach * decision.take;
      for (std::size_t i = 0; i < decision.take; ++i) times.push_back(free - arrivals[front + i]);
      break;
    }
  }
  return times;
}

class BatchFormationTest : public ::testing::TestWithParam<std::tuple<double, int, Duration>> {};

TEST_P(BatchFormationTest, IsThatOfTheServersPolicy) {
  const auto [rate, most, delay] = GetParam();
  std::vector<Duration> times;
  const auto poisson = load::PoissonArrivals(rate, 3);
  for (int i = 0; i < 3000; ++i) times.push_back(*poisson->Next());

  FleetModel model;
  model.replica.lanes = 1;
  model.replica.max_batch_requests = most;
  model.replica.max_queue_delay = delay;
  model.replica.max_queue_requests = 1 << 30;
  model.lane = LaneModel::Exactly(kBase, kEach);
  const auto traced = load::TracedArrivals(times);
  const SimulationResult simulated =
      SimulateFleet(model, *traced, {Duration{0}, times.back() + Duration{1}}, 1);

  load::Histogram wanted;
  for (const Duration time : ByPolicy(times, {most, 1 << 30, delay})) wanted.Record(time);
  ASSERT_EQ(simulated.response_time.count(), wanted.count());
  EXPECT_EQ(simulated.response_time.sum(), wanted.sum());
  for (const double percent : {0.0, 10.0, 50.0, 90.0, 99.0, 100.0}) {
    EXPECT_EQ(simulated.response_time.Percentile(percent), wanted.Percentile(percent)) << percent;
  }
}

INSTANTIATE_TEST_SUITE_P(LoadsLimitsAndDelays, BatchFormationTest,
                         ::testing::Combine(::testing::Values(50.0, 400.0, 900.0),
                                            ::testing::Values(1, 4, 32),
                                            ::testing::Values(Duration{0},
                                                              Duration{milliseconds(2)},
                                                              Duration{milliseconds(20)})));

}  // namespace
}  // namespace normd::capacity

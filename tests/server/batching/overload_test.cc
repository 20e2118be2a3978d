// What the queue makes of more than its lanes can do, under a fake clock.

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// One client's requests: one in each `every`, with these deadlines in turn.
struct Client {
  std::uint64_t holder = 0;
  Duration every{};
  std::vector<Duration> deadlines;
  bool may_be_dropped = true;
  Priority priority = Priority::kNormal;
};

struct Outcome {
  std::int64_t sent = 0;
  std::int64_t in_time = 0;
  std::int64_t refused = 0;  // Or dropped.
  std::int64_t late = 0;     // Computed or not.
};

// Lanes that compute a request in 400 us, in batches of at most eight: ten requests each
// millisecond.
class OverloadTest : public testing::Test {
 protected:
  static constexpr std::size_t kLanes = 4;
  static constexpr Duration kComputation = microseconds(400);
  static constexpr Duration kStep = microseconds(100);

  struct LaneState {
    std::unique_ptr<Batch> batch;
    TimePoint until{};
  };

  // Outcomes of what was sent after the first quarter, by holder.
  std::map<std::uint64_t, Outcome> Simulate(const std::vector<Client>& clients, Duration time);
  void Send(BatchQueue& queue, const Client& client, std::int64_t number, Outcome* outcome);
  void RunLanes(BatchQueue& queue);

  FakeClock clock_;
  ModelMetrics metrics_;
  std::shared_ptr<const Model> model_ = MakeRowModel(metrics_);
  BatchQueueOptions options_{.limits = {.max_rows = 8}, .max_queue_requests = 4096};
  std::array<LaneState, kLanes> lanes_;
};

void OverloadTest::Send(BatchQueue& queue, const Client& client, std::int64_t number,
                        Outcome* outcome) {
  RequestProbe probe(model_, {1, 1, 1});
  Request& request = *probe.request();
  const Duration deadline =
      client.deadlines[static_cast<std::size_t>(number) % client.deadlines.size()];
  const TimePoint until = deadline == Duration::max() ? kNever : clock_.Now() + deadline;
  request.deadline = until;
  request.holder = client.holder;
  request.may_be_dropped = client.may_be_dropped;
  request.priority = client.priority;
  request.done = [this, until, outcome](Completion completion) {
    if (absl::IsResourceExhausted(completion.status)) {
      ++outcome->refused;
    } else {
      ++(completion.status.ok() && clock_.Now() <= until ? outcome->in_time : outcome->late);
    }
  };
  ++outcome->sent;
  if (!queue.Push(probe.request()).ok()) ++outcome->refused;
}

void OverloadTest::RunLanes(BatchQueue& queue) {
  for (LaneState& lane : lanes_) {
    if (lane.batch != nullptr && lane.until > clock_.Now()) continue;
    if (lane.batch != nullptr) {
      for (auto& request : lane.batch->requests) Complete(std::move(request), Buffer(), {});
    }
    lane.batch = queue.TryTake().batch;
    if (lane.batch == nullptr) continue;
    lane.until = clock_.Now() + kComputation * static_cast<int>(lane.batch->requests.size());
  }
}

std::map<std::uint64_t, Outcome> OverloadTest::Simulate(const std::vector<Client>& clients,
                                                        Duration time) {
  BatchQueue queue(options_, clock_);
  std::map<std::uint64_t, Outcome> warming;
  std::map<std::uint64_t, Outcome> outcomes;
  std::vector<std::int64_t> sent(clients.size());
  const TimePoint begin = clock_.Now();
  while (clock_.Now() < begin + time) {
    const Duration passed = clock_.Now() - begin;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      while (sent[i] * clients[i].every <= passed) {
        Send(queue, clients[i], sent[i],
             &(passed < time / 4 ? warming : outcomes)[clients[i].holder]);
        ++sent[i];
      }
    }
    queue.ExpireDue();
    RunLanes(queue);
    clock_.Advance(kStep);
  }
  queue.Close();
  while (queue.waiting_requests() > 0 || std::any_of(lanes_.begin(), lanes_.end(), [](auto& lane) {
           return lane.batch != nullptr;
         })) {
    queue.ExpireDue();
    RunLanes(queue);
    clock_.Advance(kStep);
  }
  for (const auto& [holder, outcome] : outcomes) {
    EXPECT_EQ(outcome.sent, outcome.in_time + outcome.refused + outcome.late)
        << "each request ends once";
  }
  EXPECT_EQ(Queued(metrics_), 0);
  return outcomes;
}

// The first quarter, which is not counted, is about as long as most deadlines.
#ifdef NORMD_SANITIZED
constexpr int kSimulatedMs = 800;
#else
constexpr int kSimulatedMs = 2000;
#endif
constexpr Duration kSimulated = milliseconds(kSimulatedMs);
constexpr double kCapacity = 10.0 * kSimulatedMs * 3 / 4;  // Requests in what is counted.

const std::vector<std::vector<Duration>> kDeadlines = {
    {milliseconds(20)},
    {milliseconds(50)},
    {milliseconds(200)},
    {milliseconds(20), milliseconds(50)},
    {milliseconds(30), milliseconds(60), milliseconds(120)},
    {milliseconds(20), milliseconds(40), milliseconds(80), milliseconds(160), milliseconds(320)},
    {milliseconds(20), Duration::max()},
};

double GoodputOf(const std::map<std::uint64_t, Outcome>& outcomes) {
  double in_time = 0;
  for (const auto& [holder, outcome] : outcomes) in_time += static_cast<double>(outcome.in_time);
  return in_time / kCapacity;
}

TEST_F(OverloadTest, AtThreeTimesTheLoadNineTenthsOfTheCapacityAreInTime) {
  for (const auto& deadlines : kDeadlines) {
    const double goodput = GoodputOf(Simulate({{1, microseconds(100) / 3, deadlines}}, kSimulated));
    EXPECT_GE(goodput, 0.9) << deadlines.size() << " deadlines, the first "
                            << deadlines.front() / milliseconds(1) << " ms";
  }
  EXPECT_GT(Rejected(metrics_, Rejection::kLate), 0);
}

// Why the queue refuses: the same without it.
TEST_F(OverloadTest, WithoutRefusalsMostIsComputedTooLate) {
  options_.refuse_late = false;
  for (const int deadline_ms : {20, 50, 200}) {
    const double goodput =
        GoodputOf(Simulate({{1, microseconds(100) / 3, {milliseconds(deadline_ms)}}}, kSimulated));
    EXPECT_LT(goodput, 0.9) << deadline_ms;
  }
  EXPECT_EQ(Rejected(metrics_, Rejection::kLate), 0);
}

TEST_F(OverloadTest, ALoadThatLanesSustainLosesNothing) {
  for (const auto& deadlines : kDeadlines) {
    // Nine tenths of the capacity.
    const auto outcomes = Simulate({{1, microseconds(111), deadlines}}, kSimulated);
    EXPECT_EQ(outcomes.at(1).refused, 0);
    EXPECT_EQ(outcomes.at(1).late, 0);
  }
}

TEST_F(OverloadTest, OneWhoSendsLittleIsNotRefusedBesideAFlood) {
  for (const std::int64_t max_requests : {64, 512, 4096}) {
    for (const auto& deadlines : kDeadlines) {
      SCOPED_TRACE(testing::Message() << max_requests << " requests, " << deadlines.size()
                                      << " deadlines from " << deadlines.front().count());
      options_.max_queue_requests = max_requests;
      const Duration longest = *std::max_element(deadlines.begin(), deadlines.end());
      const auto outcomes = Simulate(
          {{1, microseconds(100) / 3, deadlines}, {2, microseconds(7700), {longest}}}, kSimulated);
      EXPECT_EQ(outcomes.at(2).refused, 0);
      EXPECT_EQ(outcomes.at(2).late, 0);
      EXPECT_GE(GoodputOf(outcomes), 0.9);
    }
  }
}

// Who floods without deadlines has the line full of requests that are in no hurry.
TEST_F(OverloadTest, OneWhoSendsLittleIsInTimeBesideFloodsWithoutDeadlines) {
  for (const Priority flood : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
    for (const Priority light : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(flood) << static_cast<int>(light));
      const auto outcomes =
          Simulate({{1, microseconds(50), {Duration::max()}, true, flood},
                    {2, microseconds(50), {Duration::max()}, true, flood},
                    {3, microseconds(7700), {milliseconds(10), milliseconds(20)}, true, light}},
                   kSimulated);
      EXPECT_EQ(outcomes.at(3).refused, 0);
      EXPECT_EQ(outcomes.at(3).late, 0);
      EXPECT_GE(GoodputOf(outcomes), 0.95);
    }
  }
}

// Any floods, with any deadlines; those who send at most half of their share are in time.
TEST_F(OverloadTest, TheShareOfEachCallerIsItsOwn) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto up_to = [&](int limit) {
    return std::uniform_int_distribution<int>(0, limit)(random);
  };
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    options_.max_queue_requests = 32 << up_to(7);
    const int floods = 1 + up_to(3);
    const int lights = 1 + up_to(3);
    std::vector<Client> clients;
    for (int i = 0; i < floods; ++i) {
      clients.push_back({static_cast<std::uint64_t>(1 + i), microseconds(33) * floods,
                         kDeadlines[static_cast<std::size_t>(up_to(6))], true,
                         static_cast<Priority>(up_to(2))});
      if (up_to(1) == 0) clients.back().deadlines = {Duration::max()};
    }
    // A share of the lanes is a request each 100 us for each caller. With a low priority beside
    // high ones, it is a quarter.
    for (int i = 0; i < lights; ++i) {
      clients.push_back({static_cast<std::uint64_t>(10 + i),
                         microseconds(800 + up_to(2000)) * (floods + lights),
                         {milliseconds(20 + up_to(80))},
                         true,
                         static_cast<Priority>(up_to(2))});
    }
    const auto outcomes = Simulate(clients, kSimulated);
    for (const auto& [holder, outcome] : outcomes) {
      if (holder < 10) continue;
      EXPECT_EQ(outcome.refused, 0) << "of " << outcome.sent;
      EXPECT_EQ(outcome.late, 0) << "of " << outcome.sent;
    }
    // One caller has 0.9; with several, the least of 300 runs was 0.884.
    EXPECT_GE(GoodputOf(outcomes), 0.85);
  }
}

TEST_F(OverloadTest, FloodsOfEqualRequestsHaveEqualShares) {
  const auto outcomes = Simulate({{1, microseconds(25), {Duration::max()}},
                                  {2, microseconds(50), {milliseconds(50)}},
                                  {3, microseconds(80), {milliseconds(200)}}},
                                 kSimulated);
  for (const auto& [holder, outcome] : outcomes) {
    EXPECT_NEAR(static_cast<double>(outcome.in_time), kCapacity / 3, kCapacity / 30)
        << holder << ": " << outcome.refused << " refused, " << outcome.late << " late";
  }
}

TEST_F(OverloadTest, PiecesOfStreamsAreNeverDroppedNorLate) {
  options_.max_queue_requests = 512;
  // Nothing of theirs is pushed a second time here, so they come as one that sends little.
  const auto outcomes = Simulate({{1, microseconds(100) / 3, {milliseconds(40)}},
                                  {2, microseconds(7700), {milliseconds(5)}, false}},
                                 kSimulated);
  EXPECT_EQ(outcomes.at(2).refused, 0);
}

}  // namespace
}  // namespace normd

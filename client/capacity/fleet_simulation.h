// A fleet of servers in simulated time, event by event.

#ifndef NORMD_CLIENT_CAPACITY_FLEET_SIMULATION_H_
#define NORMD_CLIENT_CAPACITY_FLEET_SIMULATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "client/capacity/lane_model.h"
#include "client/capacity/outages.h"
#include "client/fleet/balance.h"
#include "client/load/arrivals.h"
#include "client/load/histogram.h"

namespace normd::capacity {

// A server with one model and requests of one kind, as server/batching works: requests wait in the
// order of arrival, and an idle lane takes as many as a batch holds once it is full or the oldest
// has waited for the delay. Lanes do not slow each other down.
struct ReplicaModel {
  int lanes = 2;
  // Lanes that compute a request by itself, as it comes, while nothing waits and there is no delay.
  int inline_lanes = 0;
  std::int64_t max_batch_requests = 1;
  Duration max_queue_delay{0};
  std::int64_t max_queue_requests = 1024;  // What comes while so many wait is refused.
};

struct FleetModel {
  std::size_t replicas = 1;
  ReplicaModel replica;
  LaneModel lane = LaneModel::Exactly(Duration{0}, Duration{0});
  // What a request takes beside waiting and its lane: half on the way there, half on the way back.
  Quantiles beside;
  client::BalancePolicy balance = client::BalancePolicy::kLeastOutstanding;
  // Clients that balance by themselves, each by what it knows of its own calls. Requests go to them
  // in turn, and their own turns begin at any server.
  int clients = 16;

  // As client/fleet works. What an outage takes from a replica is tried again elsewhere, at once,
  // and from the second time on after 20 ms, doubled each time up to 1 s.
  int max_attempts = 5;
  std::vector<Outage> outages;
  // How long a replica hangs before its calls are taken elsewhere, and how long after an outage a
  // client knows that it is over.
  Duration hang_detection = std::chrono::milliseconds(2500);
  Duration recovery_detection = std::chrono::milliseconds(250);
};

struct SimulationTimes {
  Duration warmup = std::chrono::seconds(1);  // Requests that arrive in it are not measured.
  Duration measured = std::chrono::seconds(10);
};

struct SimulationResult {
  static constexpr std::size_t kParts = 4;

  load::Histogram response_time;  // Of answered requests, from their arrival at the client.
  // The same of equal parts of the measured time: they differ by chance, and grow where the fleet
  // falls behind.
  std::array<load::Histogram, kParts> parts;
  std::int64_t requests = 0;  // Measured.
  std::int64_t refused = 0;   // The replica's queue was full.
  std::int64_t lost = 0;      // No replica was up, or the attempts were spent.
  std::int64_t retries = 0;
  std::int64_t batches = 0;  // Of all requests.
  std::int64_t in_batches = 0;
  double busy_share = 0;  // Of the lanes' time, inline ones not counted, up to the last arrival.

  double MeanBatchRequests() const {
    return batches == 0 ? 0 : static_cast<double>(in_batches) / static_cast<double>(batches);
  }
  double failed_share() const {
    return requests == 0 ? 0 : static_cast<double>(refused + lost) / static_cast<double>(requests);
  }
};

// Runs until every request that arrives in the warm-up and the measured time has ended. The same
// seed gives the same result. `model` has at least one replica, lane and client.
SimulationResult SimulateFleet(const FleetModel& model, load::Arrivals& arrivals,
                               const SimulationTimes& times, std::uint64_t seed);

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_FLEET_SIMULATION_H_

#include "client/capacity/fleet_simulation.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <queue>
#include <utility>

#include "client/capacity/balancer.h"
#include "client/tensor/random.h"

namespace normd::capacity {
namespace {

using Index = std::uint32_t;

enum class EventKind : std::uint32_t {
  kDispatch,      // The client sends the request, again.
  kAtReplica,     // The request has come to its replica.
  kDelayEnds,     // The replica's oldest request has waited for company.
  kLaneDone,      // The lane has computed its batch.
  kLaneFree,      // And has handed out what it computed.
  kResponse,      // The client has the request's response.
  kOutageBegins,  // Of an outage, by its place, as the next three.
  kOutageDetected,
  kOutageEnds,
  kRecoveryDetected,
};

struct Event {
  Duration at{};
  std::uint64_t sequence = 0;  // Events of the same time are in the order of their making.
  Index subject = 0;
  EventKind kind{};

  bool operator>(const Event& other) const {
    return at != other.at ? at > other.at : sequence > other.sequence;
  }
};

struct SimulatedRequest {
  Duration arrival{};
  Duration admitted{};
  Duration one_way{};
  Index client = 0;
  Index replica = 0;
  int attempts = 0;
};

struct Lane {
  bool busy = false;
  std::uint64_t done_sequence = 0;  // Of the event that ends its batch; others are void.
  Duration done{};
  std::vector<Index> requests;
};

struct Replica {
  std::deque<Index> waiting;
  Duration asks_again = Duration::min();  // When the last kDelayEnds is due.
  int idle = 0;
  int idle_inline = 0;
  bool crashed = false;
  bool hangs = false;
};

class FleetSimulation {
 public:
  FleetSimulation(const FleetModel& model, const SimulationTimes& times, std::uint64_t seed);

  SimulationResult Run(load::Arrivals& arrivals);

 private:
  std::uint64_t Schedule(Duration at, EventKind kind, std::size_t subject);
  void Handle(const Event& event);

  void Arrive(Duration at);
  void Dispatch(Index id, std::optional<std::size_t> avoid);
  void Admit(Index id);
  void Respond(Index id);
  void Retry(Index id);
  void End(Index id, std::int64_t* counter);
  bool Measured(const SimulatedRequest& request) const { return request.arrival >= times_.warmup; }

  void TakeBatches(std::size_t replica);
  void Begin(std::size_t replica, bool inline_lane, std::size_t count);
  void LaneDone(std::size_t lane);
  void LaneFree(std::size_t lane);
  std::size_t LanesPerReplica() const {
    return static_cast<std::size_t>(model_.replica.lanes + model_.replica.inline_lanes);
  }

  void BeginOutage(const Outage& outage);
  void EndOutage(const Outage& outage);
  void SetUp(std::size_t replica, bool up);
  // Takes everything from the replica, and has the clients try it elsewhere.
  void TakeElsewhere(std::size_t replica);

  const FleetModel& model_;
  const SimulationTimes times_;
  client::SplitMix64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t sequence_ = 0;
  Duration now_{0};
  Duration busy_{0};  // Of lanes that are not inline.
  std::uint64_t arrived_ = 0;
  std::vector<SimulatedRequest> requests_;
  std::vector<Index> free_requests_;
  std::vector<Replica> replicas_;
  std::vector<Lane> lanes_;  // The inline ones of a replica are behind its others.
  std::vector<Balancer> clients_;
  SimulationResult result_;
};

FleetSimulation::FleetSimulation(const FleetModel& model, const SimulationTimes& times,
                                 std::uint64_t seed)
    : model_(model),
      times_(times),
      random_(seed),
      replicas_(model.replicas),
      lanes_(model.replicas * LanesPerReplica()) {
  for (Replica& replica : replicas_) {
    replica.idle = model.replica.lanes;
    replica.idle_inline = model.replica.inline_lanes;
  }
  const auto clients = static_cast<std::size_t>(model.clients);
  for (std::size_t i = 0; i < clients; ++i) {
    const auto first =
        static_cast<std::size_t>(random_.Next() % std::max<std::size_t>(model.replicas, 1));
    clients_.emplace_back(model.balance, model.replicas, first);
  }
  for (std::size_t i = 0; i < model.outages.size(); ++i) {
    Schedule(model.outages[i].begin, EventKind::kOutageBegins, i);
  }
}

std::uint64_t FleetSimulation::Schedule(Duration at, EventKind kind, std::size_t subject) {
  events_.push({at, ++sequence_, static_cast<Index>(subject), kind});
  return sequence_;
}

SimulationResult FleetSimulation::Run(load::Arrivals& arrivals) {
  const Duration end = times_.warmup + times_.measured;
  std::optional<Duration> next = arrivals.Next();
  while ((next && *next < end) || !events_.empty()) {
    const bool arrives = next && *next < end;
    if (arrives && (events_.empty() || *next <= events_.top().at)) {
      now_ = *next;
      Arrive(*next);
      next = arrivals.Next();
      continue;
    }
    const Event event = events_.top();
    events_.pop();
    // What outages are still to come when all have been answered, nobody sees.
    if (!arrives && event.kind == EventKind::kOutageBegins) continue;
    now_ = event.at;
    Handle(event);
  }
  const double lanes = static_cast<double>(model_.replicas) * model_.replica.lanes;
  result_.busy_share =
      static_cast<double>(busy_.count()) / (lanes * static_cast<double>(end.count()));
  return std::move(result_);
}

void FleetSimulation::Handle(const Event& event) {
  const std::size_t subject = event.subject;
  switch (event.kind) {
    case EventKind::kDispatch: Dispatch(event.subject, requests_[subject].replica); break;
    case EventKind::kAtReplica: Admit(event.subject); break;
    case EventKind::kDelayEnds: TakeBatches(subject); break;
    case EventKind::kLaneDone:
      if (lanes_[subject].done_sequence == event.sequence) LaneDone(subject);
      break;
    case EventKind::kLaneFree:
      if (lanes_[subject].done_sequence == event.sequence) LaneFree(subject);
      break;
    case EventKind::kResponse: Respond(event.subject); break;
    case EventKind::kOutageBegins: BeginOutage(model_.outages[subject]); break;
    case EventKind::kOutageDetected:
      if (replicas_[model_.outages[subject].replica].hangs) {
        SetUp(model_.outages[subject].replica, false);
        TakeElsewhere(model_.outages[subject].replica);
      }
      break;
    case EventKind::kOutageEnds: EndOutage(model_.outages[subject]); break;
    case EventKind::kRecoveryDetected:
      if (const std::size_t replica = model_.outages[subject].replica;
          !replicas_[replica].crashed && !replicas_[replica].hangs) {
        SetUp(replica, true);
      }
      break;
  }
}

void FleetSimulation::Arrive(Duration at) {
  Index id = 0;
  if (free_requests_.empty()) {
    id = static_cast<Index>(requests_.size());
    requests_.emplace_back();
  } else {
    id = free_requests_.back();
    free_requests_.pop_back();
  }
  SimulatedRequest& request = requests_[id];
  request = {};
  request.arrival = at;
  request.client = static_cast<Index>(arrived_++ % clients_.size());
  if (Measured(request)) ++result_.requests;
  Dispatch(id, std::nullopt);
}

void FleetSimulation::Dispatch(Index id, std::optional<std::size_t> avoid) {
  SimulatedRequest& request = requests_[id];
  Balancer& client = clients_[request.client];
  const std::optional<std::size_t> picked = client.Pick(avoid);
  if (!picked) {
    Retry(id);
    return;
  }
  client.Begin(*picked);
  request.replica = static_cast<Index>(*picked);
  request.one_way = model_.beside.Draw(random_) / 2;
  Schedule(now_ + request.one_way, EventKind::kAtReplica, id);
}

void FleetSimulation::Retry(Index id) {
  SimulatedRequest& request = requests_[id];
  if (++request.attempts >= model_.max_attempts) {
    End(id, &result_.lost);
    return;
  }
  ++result_.retries;
  Duration wait{0};
  if (request.attempts > 1) {
    wait = std::min<Duration>(std::chrono::milliseconds(20) * (1 << (request.attempts - 2)),
                              std::chrono::seconds(1));
  }
  Schedule(now_ + wait, EventKind::kDispatch, id);
}

void FleetSimulation::End(Index id, std::int64_t* counter) {
  if (counter != nullptr && Measured(requests_[id])) ++*counter;
  free_requests_.push_back(id);
}

void FleetSimulation::Admit(Index id) {
  SimulatedRequest& request = requests_[id];
  Replica& replica = replicas_[request.replica];
  if (replica.crashed) {
    clients_[request.client].End(request.replica);
    Retry(id);
    return;
  }
  if (static_cast<std::int64_t>(replica.waiting.size()) >= model_.replica.max_queue_requests) {
    clients_[request.client].End(request.replica);
    End(id, &result_.refused);
    return;
  }
  request.admitted = now_;
  const bool alone = replica.waiting.empty();
  replica.waiting.push_back(id);
  if (alone && replica.idle_inline > 0 && model_.replica.max_queue_delay <= Duration{0} &&
      !replica.hangs) {
    Begin(request.replica, true, 1);
  } else {
    TakeBatches(request.replica);
  }
}

void FleetSimulation::Respond(Index id) {
  const SimulatedRequest& request = requests_[id];
  clients_[request.client].End(request.replica);
  if (Measured(request)) {
    const Duration took = now_ - request.arrival;
    result_.response_time.Record(took);
    const auto part = static_cast<std::size_t>((request.arrival - times_.warmup) *
                                               SimulationResult::kParts / times_.measured);
    result_.parts[std::min(part, SimulationResult::kParts - 1)].Record(took);
  }
  End(id, nullptr);
}

void FleetSimulation::TakeBatches(std::size_t index) {
  Replica& replica = replicas_[index];
  const auto most = static_cast<std::size_t>(model_.replica.max_batch_requests);
  while (!replica.hangs && replica.idle > 0 && !replica.waiting.empty()) {
    const Duration ready_at =
        requests_[replica.waiting.front()].admitted + model_.replica.max_queue_delay;
    if (replica.waiting.size() < most && now_ < ready_at) {
      if (std::exchange(replica.asks_again, ready_at) != ready_at) {
        Schedule(ready_at, EventKind::kDelayEnds, index);
      }
      return;
    }
    Begin(index, false, std::min(most, replica.waiting.size()));
  }
}

void FleetSimulation::Begin(std::size_t index, bool inline_lane, std::size_t count) {
  Replica& replica = replicas_[index];
  const auto lanes = static_cast<std::size_t>(model_.replica.lanes);
  std::size_t at = index * LanesPerReplica() + (inline_lane ? lanes : 0);
  while (lanes_[at].busy) ++at;
  Lane& lane = lanes_[at];
  --(inline_lane ? replica.idle_inline : replica.idle);
  lane.busy = true;
  const auto end = replica.waiting.begin() + static_cast<std::ptrdiff_t>(count);
  lane.requests.assign(replica.waiting.begin(), end);
  replica.waiting.erase(replica.waiting.begin(), end);
  const Duration time = model_.lane.Draw(static_cast<std::int64_t>(count), random_);
  lane.done = now_ + time;
  lane.done_sequence = Schedule(lane.done, EventKind::kLaneDone, at);
  ++result_.batches;
  result_.in_batches += static_cast<std::int64_t>(count);
  const Duration end_of_load = times_.warmup + times_.measured;
  if (!inline_lane) {
    busy_ += std::clamp(end_of_load - now_, Duration{0}, time + model_.lane.turnaround());
  }
}

void FleetSimulation::LaneDone(std::size_t index) {
  Lane& lane = lanes_[index];
  for (const Index id : lane.requests) {
    Schedule(now_ + requests_[id].one_way, EventKind::kResponse, id);
  }
  lane.requests.clear();
  const Duration turnaround = model_.lane.turnaround();
  if (turnaround <= Duration{0}) {
    LaneFree(index);
    return;
  }
  lane.done = now_ + turnaround;
  lane.done_sequence = Schedule(lane.done, EventKind::kLaneFree, index);
}

void FleetSimulation::LaneFree(std::size_t index) {
  const std::size_t replica = index / LanesPerReplica();
  lanes_[index].busy = false;
  const bool inline_lane =
      index % LanesPerReplica() >= static_cast<std::size_t>(model_.replica.lanes);
  ++(inline_lane ? replicas_[replica].idle_inline : replicas_[replica].idle);
  TakeBatches(replica);
}

void FleetSimulation::SetUp(std::size_t replica, bool up) {
  for (Balancer& client : clients_) client.SetUp(replica, up);
}

void FleetSimulation::TakeElsewhere(std::size_t index) {
  std::deque<Index> taken;
  taken.swap(replicas_[index].waiting);
  for (std::size_t i = 0; i < LanesPerReplica(); ++i) {
    Lane& lane = lanes_[index * LanesPerReplica() + i];
    taken.insert(taken.end(), lane.requests.begin(), lane.requests.end());
    lane.requests.clear();
  }
  for (const Index id : taken) {
    clients_[requests_[id].client].End(index);
    Retry(id);
  }
}

void FleetSimulation::BeginOutage(const Outage& outage) {
  Replica& replica = replicas_[outage.replica];
  const std::size_t place = static_cast<std::size_t>(&outage - model_.outages.data());
  if (outage.kind == OutageKind::kCrash) {
    replica.crashed = true;
    SetUp(outage.replica, false);
    TakeElsewhere(outage.replica);
  } else {
    replica.hangs = true;
    Schedule(now_ + model_.hang_detection, EventKind::kOutageDetected, place);
  }
  for (std::size_t i = 0; i < LanesPerReplica(); ++i) {
    const std::size_t at = outage.replica * LanesPerReplica() + i;
    Lane& lane = lanes_[at];
    if (!lane.busy) continue;
    // A crash ends what the lane did, a hang makes it so much later.
    lane.done = outage.kind == OutageKind::kCrash ? now_ : lane.done + outage.length;
    lane.done_sequence = Schedule(lane.done, EventKind::kLaneDone, at);
  }
  Schedule(now_ + outage.length, EventKind::kOutageEnds, place);
}

void FleetSimulation::EndOutage(const Outage& outage) {
  Replica& replica = replicas_[outage.replica];
  replica.crashed = false;
  replica.hangs = false;
  const std::size_t place = static_cast<std::size_t>(&outage - model_.outages.data());
  Schedule(now_ + model_.recovery_detection, EventKind::kRecoveryDetected, place);
  TakeBatches(outage.replica);
}

}  // namespace

SimulationResult SimulateFleet(const FleetModel& model, load::Arrivals& arrivals,
                               const SimulationTimes& times, std::uint64_t seed) {
  return FleetSimulation(model, times, seed).Run(arrivals);
}

}  // namespace normd::capacity

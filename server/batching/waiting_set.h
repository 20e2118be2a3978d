// The waiting requests of a BatchQueue, without its lock and its sleepers. Models take turns, then
// the types of a model, each with a line of requests, and then the holders of a line. A holder's
// own requests leave in the order of DueAt.
//
// A request counts against its holder. For each model version the set knows the holder with most
// waiting requests, which loses its newest where another's request finds no room.
//
// Costs: Add, Remove and each request of a batch O(log n) in the waiting requests; NextBatch and
// NextDeadline constant. Nothing is allocated once the set has held as many requests, models and
// holders before.

#ifndef NORMD_SERVER_BATCHING_WAITING_SET_H_
#define NORMD_SERVER_BATCHING_WAITING_SET_H_

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/batching/batch_policy.h"
#include "server/batching/holder_counts.h"
#include "server/batching/request.h"
#include "server/batching/turns.h"

namespace normd {

// Not thread-safe. Never runs a request's `done`: it hands requests out. Those that leave have
// their time in Stage::kQueue.
class WaitingSet {
 public:
  // The clock, which outlives all batches, measures their time.
  WaitingSet(const BatchQueueOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  struct Added {
    bool ok() const { return status.ok(); }
    absl::Status status;
    // The reason of a refusal: for the request, or else for the dropped one.
    std::optional<Rejection> rejection;
    std::unique_ptr<Request> dropped;  // Null: none.
    absl::Status dropped_with;
  };
  // Takes `request` on success, by DecideArrival. ResourceExhausted when its model version has as
  // many waiting as it may, or it would be late; `request` then stays with the caller. It also does
  // when this throws std::bad_alloc, which leaves the set unchanged.
  Added Add(std::unique_ptr<Request>& request, TimePoint now);

  // A batch of `request` alone if it is to be computed inline, by RunsInline; otherwise null, and
  // `request` stays with the caller. It never was in the set.
  std::unique_ptr<Batch> TakeInline(std::unique_ptr<Request>& request, TimePoint now);

  // Null when no such request waits.
  std::unique_ptr<Request> Remove(std::uint64_t id, TimePoint now);
  // Removes the requests that may wait no longer, by WaitsUntil.
  std::vector<std::unique_ptr<Request>> RemoveExpired(TimePoint now);
  std::vector<std::unique_ptr<Request>> RemoveAll(TimePoint now);

  // A batch of the line whose turn it is among those that ReadyAt releases, by BatchFill. Null:
  // none. Without memory for more, it has fewer requests, and at least one.
  std::unique_ptr<Batch> TakeBatch(TimePoint now);

  // Waiting and later requests are no longer held back for company.
  void EndQueueDelay();

  // The time at which TakeBatch has a batch; kAtOnce if it has one now, kNever when nothing waits.
  TimePoint NextBatch() const;
  TimePoint NextDeadline() const;
  std::int64_t size() const { return static_cast<std::int64_t>(by_id_.size()); }

 private:
  // The orders are std::sets and std::maps for their nodes: an element keeps its node while it is
  // outside, so that moving it allocates nothing and cannot fail. (abseil's hash map is broken once
  // it has found no memory to grow.)
  struct Group;
  struct Line;
  struct Flow;
  struct Waiting;
  using Flows = std::map<std::uint64_t, Flow>;  // By holder.
  using SpareFlows = std::multimap<std::uint64_t, Flow>;
  using Waitings = std::list<Waiting>;
  using Groups = std::list<Group>;
  using ById = std::map<std::uint64_t, Waitings::iterator>;
  using ByModel = std::map<const Model*, Groups::iterator>;
  using Deadlines = std::set<std::pair<TimePoint, std::uint64_t>>;  // With the request's id.
  using Delays = std::set<std::pair<TimePoint, Line*>>;
  using Holds = std::set<std::pair<TimePoint, std::uint64_t>>;  // With the request's sequence.

  struct Waiting : HolderCounts::Entry {
    Waiting();
    std::unique_ptr<Request> request;
    WaitingRequest facts;
    TimePoint due{};
    std::uint64_t sequence = 0;
    Flow* flow = nullptr;
    std::unique_ptr<Batch> batch;  // For TakeBatch, if this is then at the front.
    ById::node_type id_node;
    Deadlines::node_type deadline_node;
    Holds::node_type hold_node;
  };

  // What waits of one holder in a line; none, while it has debts.
  struct Flow : Turns<Flow>::Member {
    Line* line = nullptr;
    std::uint64_t holder = 0;
    std::array<Waitings, kPriorityCount> levels;        // Each in order of arrival.
    std::array<VirtualTime, kPriorityCount> charges{};  // By level.
    std::int64_t requests = 0;
  };
  struct Line : Turns<Line>::Member {
    Group* group = nullptr;
    norm::DType dtype = norm::DType::kFloat32;
    Flows flows;
    Turns<Flow> turns;
    TurnPace pace;  // That of `turns`.
    QueueTotals totals;
    Holds holds;  // By HeldUntil; empty without a queue delay.
    enum { kAbsent, kReady, kDelayed } place = kAbsent;
    Delays::node_type delay_node;  // While it is not delayed.
    TimePoint delayed_until{};
  };
  // One model version. Holds no reference to the model: its requests do.
  struct Group : Turns<Group>::Member {
    Group();
    const Model* model = nullptr;  // A key, never followed.
    BatchLimits limits;
    std::int64_t max_requests = 0;
    std::int64_t requests = 0;
    std::array<Line, 4> lines;
    Turns<Line> turns;                    // Lines that may go wait in it.
    std::shared_ptr<LaneTime> lane_time;  // shared: with the batches that lanes have.
    HolderCounts holders;
    ByModel::node_type model_node;
  };

  Group& GroupFor(const Model& model);
  Arrival ArrivalOf(const Request& request, Group& group, TimePoint now) const;
  static Duration WaitOf(const Request& request, const Group& group);
  static Waiting& Droppable(const Group& group);
  Flow& FlowFor(Line& line, std::uint64_t holder);
  void Rest(Group& group);
  void Release(Group& group);
  void Release(Flow& flow);
  void ForgetAll();
  void Fill(Batch& batch, Line& line, TimePoint now);
  std::unique_ptr<Request> Extract(Waitings::iterator waiting, TimePoint now);
  static void Count(const Waiting& waiting, std::int64_t sign);
  void Place(Flow& flow);
  void Place(Line& line);
  void Displace(Line& line);
  void EnterTurns(Line& line);
  static Waitings::iterator Front(Flow& flow);
  static Waitings::iterator Front(Line& line) { return Front(*line.turns.First()); }

  const BatchQueueOptions options_;
  const Clock& clock_;
  bool closing_ = false;
  std::uint64_t next_sequence_ = 0;
  std::int64_t next_batch_id_ = 1;
  ByModel by_model_;
  Groups groups_;  // Found by `by_model_`.
  ById by_id_;
  Deadlines deadlines_;
  Turns<Group> turns_;  // Groups with a line that may go wait in it.
  Delays delayed_;
  // Kept for reuse.
  Waitings spare_;
  Groups spare_groups_;
  SpareFlows spare_flows_;
  HolderCounts::Spares spare_holders_;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_WAITING_SET_H_

// What waits in a BatchQueue, without its lock and its sleepers: one line of requests for each
// (model version, type), and the orders in which lines and requests come due.
//
// Costs: Add, Remove and each request of a batch O(log n) in what waits; NextBatch and NextDeadline
// constant. A request that waits costs no allocation once the set has held as many before.

#ifndef NORMD_SERVER_BATCHING_WAITING_SET_H_
#define NORMD_SERVER_BATCHING_WAITING_SET_H_

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/base/clock.h"
#include "server/batching/batch_policy.h"
#include "server/batching/batch_queue.h"
#include "server/batching/request.h"

namespace normd {

// Not thread-safe. Never runs a request's `done`: it hands requests out. Those that leave have
// their time in Stage::kQueue.
class WaitingSet {
 public:
  explicit WaitingSet(const BatchQueueOptions& options) : options_(options) {}

  // Takes `request` on success. ResourceExhausted when its model version has as many waiting as it
  // may; `request` then stays with the caller.
  absl::Status Add(std::unique_ptr<Request>& request, TimePoint now);

  // Null when no such request waits.
  std::unique_ptr<Request> Remove(std::uint64_t id, TimePoint now);
  std::vector<std::unique_ptr<Request>> RemoveExpired(TimePoint now);
  // By model version and type, each in order of arrival.
  std::vector<std::unique_ptr<Request>> RemoveAll(TimePoint now);

  // Of the lines that DecideBatch lets go, the one whose oldest request came first. Null: none.
  std::unique_ptr<Batch> TakeBatch(TimePoint now);

  // No more will be added: what waits is no longer held back for company.
  void Close();

  // When TakeBatch has something to give; kAtOnce when it has now, kNever when nothing waits.
  TimePoint NextBatch() const;
  TimePoint NextDeadline() const;
  std::int64_t size() const { return static_cast<std::int64_t>(by_id_.size()); }

 private:
  struct Line;
  struct Waiting {
    std::unique_ptr<Request> request;
    WaitingRequest facts;
    std::uint64_t sequence = 0;
    Line* line = nullptr;
  };
  using Waitings = std::list<Waiting>;

  struct Group;
  struct Line {
    Group* group = nullptr;
    norm::DType dtype = norm::DType::kFloat32;
    Waitings waiting;
    QueueTotals totals;
    // Its entry in `ready_` or `delayed_`.
    enum { kAbsent, kReady, kDelayed } place = kAbsent;
    std::uint64_t ready_sequence = 0;
    TimePoint delayed_until{};
  };
  // One model version. Holds no reference to the model: its requests do.
  struct Group {
    const Model* model = nullptr;
    BatchLimits limits;
    std::int64_t max_requests = 0;
    std::int64_t requests = 0;
    std::array<Line, 4> lines;
  };

  Group& GroupFor(const Model& model);
  void DropIfEmpty(Group& group);
  std::unique_ptr<Request> Extract(Waitings::iterator waiting, TimePoint now);
  void Place(Line& line);
  void Displace(Line& line);

  const BatchQueueOptions options_;
  bool closing_ = false;
  std::uint64_t next_sequence_ = 0;
  std::int64_t next_batch_id_ = 1;
  absl::flat_hash_map<const Model*, std::unique_ptr<Group>> groups_;
  absl::flat_hash_map<std::uint64_t, Waitings::iterator> by_id_;
  absl::btree_set<std::pair<TimePoint, std::uint64_t>> deadlines_;  // With the request's id.
  absl::btree_set<std::pair<std::uint64_t, Line*>> ready_;          // By their front's sequence.
  absl::btree_set<std::pair<TimePoint, Line*>> delayed_;
  // Kept for reuse.
  Waitings spare_;
  std::vector<std::unique_ptr<Group>> spare_groups_;
  std::vector<WaitingRequest> prefix_;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_WAITING_SET_H_

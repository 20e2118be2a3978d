#include "server/batching/waiting_set.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <new>
#include <numeric>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/batching/holder_counts.h"

namespace normd {
namespace {

// The errors of requests that do not get into the queue, or have to leave it for another.

double InMs(Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// `waiting`: the waiting requests of its model version.
absl::Status NoRoom(const Request& request, std::int64_t waiting) {
  return absl::ResourceExhaustedError(absl::StrCat("queue of model \"", request.model->name(),
                                                   "\": ", waiting,
                                                   " requests wait, as many as may"));
}

// It would wait for longer than its deadline or its own time-out allows.
absl::Status TooLate(const Request& request, const Arrival& arrival) {
  const bool by_deadline = arrival.patience < request.queue_timeout;
  const absl::string_view bound = by_deadline ? "the deadline" : Name(request.timeout_field);
  return absl::ResourceExhaustedError(
      absl::StrCat("queue of model \"", request.model->name(), "\": a request would wait ",
                   InMs(arrival.wait), " ms, ", bound, " leaves ", InMs(arrival.patience), " ms"));
}

// `request` waits and is dropped for `arrival`'s.
absl::Status GivesWay(const Request& request, const Arrival& arrival) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue of model \"", request.model->name(),
      "\": ", arrival.line_is_full ? "it is full" : "others would wait too long",
      ", and this caller has ", arrival.most_waiting, " requests in it, more than any other"));
}

std::size_t IndexOf(norm::DType dtype) { return static_cast<std::size_t>(dtype) - 1; }

BatchLimits LimitsOf(const v1::BatchingConfig& config, BatchLimits limits) {
  if (config.has_max_rows()) limits.max_rows = config.max_rows();
  if (config.has_max_bytes()) limits.max_bytes = config.max_bytes();
  if (config.has_max_queue_delay_us()) {
    constexpr std::int64_t kMaxMicroseconds = Duration::max().count() / 1000;
    limits.max_queue_delay =
        std::chrono::microseconds(std::min(config.max_queue_delay_us(), kMaxMicroseconds));
  }
  return limits;
}

WaitingRequest FactsOf(const Request& request, TimePoint admitted) {
  return {request.geometry.rows, request.geometry.LargerBytes(), admitted, request.priority,
          WaitsUntil(request)};
}

// The longest wait, if lanes then have it for `computation`; Duration::max(): no limit.
Duration PatienceOf(const Request& request, TimePoint now, Duration computation) {
  const Duration timeout = std::max(request.queue_timeout, Duration::zero());
  if (request.deadline == kNever) return timeout;
  return std::clamp(request.deadline - now - computation, Duration::zero(), timeout);
}

}  // namespace

WaitingSet::Waiting::Waiting()
    : id_node(NewNode<ById>()), deadline_node(NewNode<Deadlines>()), hold_node(NewNode<Holds>()) {}

WaitingSet::Group::Group()
    : lane_time(std::make_shared<LaneTime>()),
      turn_node(NewNode<Turns>()),
      model_node(NewNode<ByModel>()) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    lines[i].group = this;
    lines[i].dtype = static_cast<norm::DType>(i + 1);
    lines[i].delay_node = NewNode<Delays>();
  }
}

// Goes over a line's levels in the order in which its requests leave.
class WaitingSet::Cursor {
 public:
  explicit Cursor(Line& line) : line_(line) {
    for (std::size_t i = 0; i < kPriorityCount; ++i) at_[i] = line.levels[i].begin();
  }
  // Requires that there is one more.
  Waitings::iterator Next() {
    Waitings::iterator* first = nullptr;
    for (std::size_t i = 0; i < kPriorityCount; ++i) {
      if (at_[i] == line_.levels[i].end()) continue;
      if (first == nullptr || Order(*at_[i]) < Order(**first)) first = &at_[i];
    }
    assert(first != nullptr && "the line has no more");
    return (*first)++;
  }
  static std::tuple<TimePoint, std::uint64_t> Order(const Waiting& waiting) {
    return {waiting.due, waiting.sequence};
  }

 private:
  Line& line_;
  std::array<Waitings::iterator, kPriorityCount> at_;
};

WaitingSet::Added WaitingSet::Add(std::unique_ptr<Request>& request, TimePoint now) {
  Added added;
  Group& group = GroupFor(*request->model);
  const absl::Cleanup leave_no_empty_group = [&] {
    if (group.requests == 0) Rest(group);
  };
  request->admitted = now;
  const Arrival arrival = ArrivalOf(*request, group, now);
  const Verdict verdict = DecideArrival(arrival);
  if (verdict != Verdict::kEnters) {
    const bool for_room = arrival.line_is_full && verdict != Verdict::kIsLate;
    added.rejection = for_room ? Rejection::kQueueFull : Rejection::kLate;
  }
  if (verdict == Verdict::kFindsNoRoom) added.status = NoRoom(*request, group.requests);
  if (verdict == Verdict::kIsLate) added.status = TooLate(*request, arrival);
  if (!added.ok()) return added;
  Waiting* const gives_way = verdict == Verdict::kReplaces ? &Droppable(group) : nullptr;
  if (gives_way != nullptr) added.dropped_with = GivesWay(*gives_way->request, arrival);
  if (spare_.empty()) spare_.emplace_back();
  HolderCounts::Reserve(spare_holders_);
  const auto waiting = spare_.begin();
  if (waiting->batch == nullptr) waiting->batch = std::make_unique<Batch>();
  prefix_.reserve(1);

  // Nothing can fail from here on.
  waiting->id_node.key() = request->id;
  waiting->id_node.mapped() = waiting;
  const bool unique = by_id_.insert(std::move(waiting->id_node)).inserted;
  assert(unique && "two requests of one id");
  static_cast<void>(unique);
  Line& line = group.lines[IndexOf(request->dtype)];
  Waitings& level = line.levels[static_cast<std::size_t>(request->priority)];
  level.splice(level.end(), spare_, waiting);
  waiting->facts = FactsOf(*request, now);
  waiting->due = DueAt(request->priority, now, options_.priority_aging);
  waiting->sequence = next_sequence_++;
  waiting->line = &line;
  if (waiting->facts.expires != kNever) {
    waiting->deadline_node.value() = {waiting->facts.expires, request->id};
    deadlines_.insert(std::move(waiting->deadline_node));
  }
  if (group.limits.max_queue_delay > Duration::zero()) {
    waiting->hold_node.value() = {HeldUntil(waiting->facts, group.limits), waiting->sequence};
    line.holds.insert(std::move(waiting->hold_node));
  }
  ++group.requests;
  ++line.totals.requests;
  line.totals.rows += waiting->facts.rows;
  line.totals.bytes += waiting->facts.bytes;
  group.cost[static_cast<std::size_t>(request->priority)] += Cost(waiting->facts);
  request->model->metrics().AddQueued(1);
  group.holders.Add(*waiting, request->holder, request->may_be_dropped, spare_holders_);
  request->accepted = true;
  waiting->request = std::move(request);
  // A line that may already go stays in place: another request does not hold it back.
  if (line.place != Line::kReady) Place(line);
  if (gives_way != nullptr) added.dropped = Remove(gives_way->request->id, now);
  return added;
}

// All requests of its level and above are ahead of it. Aged requests of lower levels are left out,
// which makes the estimate smaller and refuses none wrongly.
Arrival WaitingSet::ArrivalOf(const Request& request, Group& group, TimePoint now) const {
  Arrival arrival;
  arrival.line_is_full = group.requests >= group.max_requests;
  const auto level = static_cast<std::ptrdiff_t>(request.priority);
  const std::int64_t ahead =
      std::accumulate(group.cost.begin(), group.cost.begin() + level + 1, std::int64_t{0});
  arrival.wait = arrival.wait_instead = group.drain.TimeFor(ahead);
  if (request.may_be_dropped && options_.refuse_late) {
    arrival.patience = PatienceOf(request, now, group.lane_time->average());
  }
  // There is room, as in most cases, or no request to replace.
  if (!arrival.line_is_full && arrival.wait == Duration::zero()) return arrival;
  if (request.holder == 0 || group.holders.MostDroppable() == 0) return arrival;
  arrival.own_waiting = group.holders.WaitingOf(request.holder);
  arrival.most_waiting = group.holders.MostDroppable();
  const WaitingRequest& droppable = Droppable(group).facts;
  if (droppable.priority <= request.priority) {
    arrival.wait_instead = group.drain.TimeFor(ahead - Cost(droppable));
  }
  return arrival;
}

// The request that gives way to another holder's, if any does.
WaitingSet::Waiting& WaitingSet::Droppable(const Group& group) {
  return static_cast<Waiting&>(group.holders.Droppable());
}

std::unique_ptr<Batch> WaitingSet::TakeInline(std::unique_ptr<Request>& request, TimePoint now) {
  const WaitingRequest facts = FactsOf(*request, now);
  const BatchLimits limits = LimitsOf(request->model->config().batching(), options_.limits);
  if (!RunsInline(facts, size(), limits, options_.max_inline_bytes)) return nullptr;
  auto batch = std::make_unique<Batch>();
  batch->requests.reserve(1);
  batch->id = next_batch_id_++;
  batch->model = request->model;
  batch->dtype = request->dtype;
  batch->bytes = facts.bytes;
  batch->taken = now;
  request->admitted = now;
  request->accepted = true;
  batch->requests.push_back(std::move(request));
  return batch;
}

std::unique_ptr<Request> WaitingSet::Remove(std::uint64_t id, TimePoint now) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Line& line = *found->second->line;
  std::unique_ptr<Request> request = Extract(found->second, now);
  Place(line);
  if (line.group->requests == 0) Rest(*line.group);
  return request;
}

std::vector<std::unique_ptr<Request>> WaitingSet::RemoveExpired(TimePoint now) {
  std::vector<std::unique_ptr<Request>> expired;
  try {
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      expired.emplace_back();  // Its new place first, so that a request is never without one.
      expired.back() = Remove(deadlines_.begin()->second, now);
    }
  } catch (const std::bad_alloc&) {
    // No memory for another place: the next call goes on.
  }
  return expired;
}

std::vector<std::unique_ptr<Request>> WaitingSet::RemoveAll(TimePoint now) {
  std::vector<std::unique_ptr<Request>> all;
  all.reserve(by_id_.size());
  for (Group& group : groups_) {
    for (Line& line : group.lines) {
      for (Waitings& level : line.levels) {
        while (!level.empty()) all.push_back(Extract(level.begin(), now));
      }
      Place(line);
    }
  }
  ForgetAll();
  return all;
}

std::unique_ptr<Batch> WaitingSet::TakeBatch(TimePoint now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Line& due = *delayed_.begin()->second;
    Displace(due);
    due.place = Line::kReady;
    PlaceGroup(*due.group);
  }
  if (ready_.empty()) return nullptr;
  Group& group = *ready_.begin()->second;
  Line& line = *FirstReadyLine(group);
  // Made by Add: a batch of one needs no memory.
  std::unique_ptr<Batch> batch = std::move(Front(line)->batch);
  std::size_t take = 1;
  try {
    take = RequestsToTake(line, now);
    batch->requests.reserve(take);
  } catch (const std::bad_alloc&) {
    take = 1;
  }
  batch->id = next_batch_id_++;
  batch->model = Front(line)->request->model;
  batch->dtype = line.dtype;
  batch->taken = now;
  virtual_now_ = group.turn.begin;
  group.end = virtual_now_;
  std::int64_t cost = 0;
  Exit(group);
  for (std::size_t i = 0; i < take; ++i) {
    const WaitingRequest& facts = prefix_[i];
    batch->bytes += facts.bytes;
    group.end += Charge(facts);
    cost += Cost(facts);
    batch->requests.push_back(Extract(Front(line), now));
  }
  batch->lane_time = group.lane_time;
  batch->clock = &clock_;
  group.drain.OnTake(cost, now);
  Place(line);
  if (group.requests == 0) Rest(group);
  while (!resting_.empty() && resting_.begin()->first.begin <= virtual_now_) {
    Release(*resting_.begin()->second);
  }
  return batch;
}

// Leaves their facts in prefix_, of one at least.
std::size_t WaitingSet::RequestsToTake(Line& line, TimePoint now) {
  // The policy sees no more than the first request that cannot be part of the batch.
  const BatchLimits& limits = line.group->limits;
  prefix_.clear();
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  Cursor cursor(line);
  for (std::int64_t left = line.totals.requests; left > 0; --left) {
    prefix_.push_back(cursor.Next()->facts);
    rows += prefix_.back().rows;
    bytes += prefix_.back().bytes;
    if (rows > limits.max_rows || bytes > limits.max_bytes) break;
  }
  const BatchDecision decision = DecideBatch(prefix_, limits, now, closing_);
  assert(decision.take > 0 && "ReadyAt and DecideBatch disagree");
  return decision.take;
}

void WaitingSet::EndQueueDelay() {
  closing_ = true;
  while (!delayed_.empty()) Place(*delayed_.begin()->second);
}

TimePoint WaitingSet::NextBatch() const {
  if (!ready_.empty()) return kAtOnce;
  return delayed_.empty() ? kNever : delayed_.begin()->first;
}

TimePoint WaitingSet::NextDeadline() const {
  return deadlines_.empty() ? kNever : deadlines_.begin()->first;
}

// A group without waiting requests may have been another model's at the same address: the new one
// takes over its debt, and nothing else.
WaitingSet::Group& WaitingSet::GroupFor(const Model& model) {
  auto found = by_model_.find(&model);
  if (found == by_model_.end()) {
    if (spare_groups_.empty()) spare_groups_.emplace_back();
    const auto fresh = spare_groups_.begin();
    groups_.splice(groups_.end(), spare_groups_, fresh);
    fresh->model_node.key() = &model;
    fresh->model_node.mapped() = fresh;
    found = by_model_.insert(std::move(fresh->model_node)).position;
  }
  Group& group = *found->second;
  if (group.requests > 0) return group;
  const v1::BatchingConfig& config = model.config().batching();
  group.model = &model;
  group.limits = LimitsOf(config, options_.limits);
  group.max_requests =
      config.has_max_queue_requests() ? config.max_queue_requests() : options_.max_queue_requests;
  return group;
}

// For a group without waiting requests.
void WaitingSet::Rest(Group& group) {
  if (by_id_.empty()) {
    ForgetAll();
  } else if (group.end <= virtual_now_) {
    Release(group);
  } else {
    Exit(group);
    Enter(resting_, group, {group.end, 0});
  }
}

void WaitingSet::Release(Group& group) {
  Exit(group);
  group.end = 0;
  const auto found = by_model_.find(group.model);
  spare_groups_.splice(spare_groups_.begin(), groups_, found->second);
  group.model_node = by_model_.extract(found);
}

// If nothing waits, there are no debts.
void WaitingSet::ForgetAll() {
  while (!groups_.empty()) Release(groups_.front());
  virtual_now_ = 0;
}

// Keeps the line's place: the caller calls Place when it has extracted all it wants.
std::unique_ptr<Request> WaitingSet::Extract(Waitings::iterator waiting, TimePoint now) {
  Line& line = *waiting->line;
  line.group->holders.Remove(*waiting, waiting->request->holder, spare_holders_);
  std::unique_ptr<Request> request = std::move(waiting->request);
  waiting->id_node = by_id_.extract(request->id);
  if (waiting->facts.expires != kNever) {
    waiting->deadline_node = deadlines_.extract({waiting->facts.expires, request->id});
  }
  if (!line.holds.empty()) {
    waiting->hold_node =
        line.holds.extract({HeldUntil(waiting->facts, line.group->limits), waiting->sequence});
  }
  --line.group->requests;
  --line.totals.requests;
  line.totals.rows -= waiting->facts.rows;
  line.totals.bytes -= waiting->facts.bytes;
  line.group->cost[static_cast<std::size_t>(request->priority)] -= Cost(waiting->facts);
  spare_.splice(spare_.begin(), line.levels[static_cast<std::size_t>(request->priority)], waiting);
  request->stages[Stage::kQueue] += now - request->admitted;
  request->model->metrics().AddQueued(-1);
  return request;
}

WaitingSet::Waitings::iterator WaitingSet::Front(Line& line) { return Cursor(line).Next(); }

WaitingSet::Line* WaitingSet::FirstReadyLine(Group& group) {
  Line* first = nullptr;
  for (Line& line : group.lines) {
    if (line.place != Line::kReady) continue;
    if (first == nullptr || Cursor::Order(*Front(line)) < Cursor::Order(*Front(*first))) {
      first = &line;
    }
  }
  return first;
}

void WaitingSet::Place(Line& line) {
  Displace(line);
  line.totals.held_until = line.holds.empty() ? kNever : line.holds.begin()->first;
  const TimePoint ready_at = ReadyAt(line.totals, line.group->limits, closing_);
  if (line.totals.requests == 0) {
    line.place = Line::kAbsent;
  } else if (ready_at == kAtOnce) {
    line.place = Line::kReady;
  } else {
    line.place = Line::kDelayed;
    line.delay_node.value() = {ready_at, &line};
    line.delayed_until = ready_at;
    delayed_.insert(std::move(line.delay_node));
  }
  PlaceGroup(*line.group);
}

void WaitingSet::Displace(Line& line) {
  if (line.place == Line::kDelayed) {
    line.delay_node = delayed_.extract({line.delayed_until, &line});
  }
  line.place = Line::kAbsent;
}

// A group that may already go keeps its turn.
void WaitingSet::PlaceGroup(Group& group) {
  Line* const first = FirstReadyLine(group);
  if (first == nullptr) {
    Exit(group);
    group.drain.Reset();
  } else if (group.place != Group::kReady) {
    Exit(group);
    Enter(ready_, group, {std::max(group.end, virtual_now_), Front(*first)->sequence});
  }
}

void WaitingSet::Enter(Turns& turns, Group& group, Turn turn) {
  group.turn = turn;
  group.place = &turns == &ready_ ? Group::kReady : Group::kResting;
  group.turn_node.value() = {turn, &group};
  turns.insert(std::move(group.turn_node));
}

void WaitingSet::Exit(Group& group) {
  if (group.place == Group::kAbsent) return;
  Turns& turns = group.place == Group::kReady ? ready_ : resting_;
  group.turn_node = turns.extract({group.turn, &group});
  group.place = Group::kAbsent;
}

}  // namespace normd

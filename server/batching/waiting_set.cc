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
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue of model \"", request.model->name(), "\": a request would wait ", InMs(arrival.wait),
      " ms, wanted at most ", InMs(LongestWait(arrival.patience)), " ms, three quarters of the ",
      InMs(arrival.patience), " ms that ", bound, " leaves"));
}

// `request` waits and is dropped for `arrival`'s.
absl::Status GivesWay(const Request& request, const Arrival& arrival) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue of model \"", request.model->name(), "\": it is full, and this caller has ",
      arrival.most_waiting, " requests in it, more than any other"));
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
    : lane_time(std::make_shared<LaneTime>()), model_node(NewNode<ByModel>()) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    lines[i].group = this;
    lines[i].dtype = static_cast<norm::DType>(i + 1);
    lines[i].delay_node = NewNode<Delays>();
  }
}

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
  if (spare_flows_.empty()) spare_flows_.emplace();
  HolderCounts::Reserve(spare_holders_);
  const auto waiting = spare_.begin();
  if (waiting->batch == nullptr) waiting->batch = std::make_unique<Batch>();

  // Nothing can fail from here on.
  waiting->id_node.key() = request->id;
  waiting->id_node.mapped() = waiting;
  const bool unique = by_id_.insert(std::move(waiting->id_node)).inserted;
  assert(unique && "two requests of one id");
  static_cast<void>(unique);
  Line& line = group.lines[IndexOf(request->dtype)];
  Flow& flow = FlowFor(line, request->holder);
  Waitings& level = flow.levels[static_cast<std::size_t>(request->priority)];
  level.splice(level.end(), spare_, waiting);
  waiting->facts = FactsOf(*request, now);
  waiting->due = DueAt(request->priority, now, options_.priority_aging);
  waiting->sequence = next_sequence_++;
  waiting->flow = &flow;
  if (waiting->facts.expires != kNever) {
    waiting->deadline_node.value() = {waiting->facts.expires, request->id};
    deadlines_.insert(std::move(waiting->deadline_node));
  }
  if (group.limits.max_queue_delay > Duration::zero()) {
    waiting->hold_node.value() = {HeldUntil(waiting->facts, group.limits), waiting->sequence};
    line.holds.insert(std::move(waiting->hold_node));
  }
  Count(*waiting, 1);
  request->model->metrics().AddQueued(1);
  group.holders.Add(*waiting, request->holder, request->may_be_dropped, spare_holders_);
  request->accepted = true;
  waiting->request = std::move(request);
  Place(flow);
  // A line that may already go stays in place: another request does not hold it back.
  if (line.place == Line::kReady) {
    EnterTurns(line);
  } else {
    Place(line);
  }
  if (gives_way != nullptr) added.dropped = Remove(gives_way->request->id, now);
  return added;
}

Arrival WaitingSet::ArrivalOf(const Request& request, Group& group, TimePoint now) const {
  Arrival arrival;
  arrival.line_is_full = group.requests >= group.max_requests;
  if (request.may_be_dropped && options_.refuse_late) {
    arrival.patience = PatienceOf(request, now, group.lane_time->average());
    arrival.wait = WaitOf(request, group);
  }
  if (arrival.line_is_full && request.holder != 0) {
    arrival.own_waiting = group.holders.WaitingOf(request.holder);
    arrival.most_waiting = group.holders.MostDroppable();
  }
  return arrival;
}

// Its turn begins after those of its holder's requests of its level and above, at the pace at which
// the line's turns have gone of late: others' later requests go in between. Aged requests of lower
// levels are left out, which makes the estimate smaller and refuses none wrongly.
Duration WaitingSet::WaitOf(const Request& request, const Group& group) {
  const Line& line = group.lines[IndexOf(request.dtype)];
  const auto found = line.flows.find(request.holder);
  if (found == line.flows.end()) return Duration::zero();
  const Flow& flow = found->second;
  const auto levels_ahead = static_cast<std::ptrdiff_t>(request.priority) + 1;
  return line.pace.TimeFor(std::accumulate(
      flow.charges.begin(), flow.charges.begin() + levels_ahead, line.turns.DebtOf(flow)));
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
  Line& line = *found->second->flow->line;
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
      while (line.totals.requests > 0) all.push_back(Extract(Front(line), now));
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
    EnterTurns(due);
  }
  if (turns_.First() == nullptr) return nullptr;
  Group& group = *turns_.First();
  Line& line = *group.turns.First();
  // Made by Add: a batch of one needs no memory.
  std::unique_ptr<Batch> batch = std::move(Front(line)->batch);
  batch->id = next_batch_id_++;
  batch->model = Front(line)->request->model;
  batch->dtype = line.dtype;
  batch->taken = now;
  const VirtualTime line_time = line.turns.now();
  Fill(*batch, line, now);
  line.pace.OnTake(line.turns.now() - line_time, now);
  batch->lane_time = group.lane_time;
  batch->clock = &clock_;
  while (Flow* const paid = line.turns.NextPaid()) Release(*paid);
  Place(line);
  if (group.requests == 0) Rest(group);
  while (Group* const paid = turns_.NextPaid()) Release(*paid);
  return batch;
}

void WaitingSet::Fill(Batch& batch, Line& line, TimePoint now) {
  VirtualTime charge = 0;
  BatchFill fill(line.group->limits);
  while (line.totals.requests > 0) {
    Flow& flow = *line.turns.First();
    const Waitings::iterator next = Front(flow);
    if (!fill.Takes(next->facts)) break;
    try {
      batch.requests.emplace_back();  // Its place first, so that it is never without one.
    } catch (const std::bad_alloc&) {
      break;
    }
    batch.bytes += next->facts.bytes;
    charge += Charge(next->facts);
    line.turns.Take(flow, Charge(next->facts));
    line.turns.Pass(Charge(next->facts));
    batch.requests.back() = Extract(next, now);
  }
  line.group->turns.Take(line, charge);
  turns_.Take(*line.group, charge);
}

void WaitingSet::EndQueueDelay() {
  closing_ = true;
  while (!delayed_.empty()) Place(*delayed_.begin()->second);
}

TimePoint WaitingSet::NextBatch() const {
  if (turns_.First() != nullptr) return kAtOnce;
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

WaitingSet::Flow& WaitingSet::FlowFor(Line& line, std::uint64_t holder) {
  auto found = line.flows.find(holder);
  if (found == line.flows.end()) {
    auto fresh = spare_flows_.extract(spare_flows_.begin());
    fresh.key() = holder;
    fresh.mapped().holder = holder;
    fresh.mapped().line = &line;
    found = line.flows.insert(std::move(fresh)).position;
  }
  return found->second;
}

// For a group without waiting requests.
void WaitingSet::Rest(Group& group) {
  for (Line& line : group.lines) group.turns.Forget(line);
  if (by_id_.empty()) {
    ForgetAll();
  } else if (!turns_.Rest(group)) {
    Release(group);
  }
}

void WaitingSet::Release(Group& group) {
  turns_.Forget(group);
  const auto found = by_model_.find(group.model);
  spare_groups_.splice(spare_groups_.begin(), groups_, found->second);
  group.model_node = by_model_.extract(found);
}

void WaitingSet::Release(Flow& flow) {
  flow.line->turns.Forget(flow);
  spare_flows_.insert(flow.line->flows.extract(flow.holder));
}

// If nothing waits, there are no debts.
void WaitingSet::ForgetAll() {
  while (!groups_.empty()) Release(groups_.front());
}

// Keeps the line's place: the caller calls Place when it has extracted all it wants.
std::unique_ptr<Request> WaitingSet::Extract(Waitings::iterator waiting, TimePoint now) {
  Flow& flow = *waiting->flow;
  Line& line = *flow.line;
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
  Count(*waiting, -1);
  spare_.splice(spare_.begin(), flow.levels[static_cast<std::size_t>(request->priority)], waiting);
  Place(flow);
  request->stages[Stage::kQueue] += now - request->admitted;
  request->model->metrics().AddQueued(-1);
  return request;
}

void WaitingSet::Count(const Waiting& waiting, std::int64_t sign) {
  const WaitingRequest& facts = waiting.facts;
  Flow& flow = *waiting.flow;
  Line& line = *flow.line;
  line.group->requests += sign;
  line.totals.requests += sign;
  line.totals.rows += sign * facts.rows;
  line.totals.bytes += sign * facts.bytes;
  flow.requests += sign;
  flow.charges[static_cast<std::size_t>(facts.priority)] += sign * Charge(facts);
}

// Requires that something waits.
WaitingSet::Waitings::iterator WaitingSet::Front(Flow& flow) {
  Waitings::iterator first{};
  bool found = false;
  for (Waitings& level : flow.levels) {
    if (level.empty()) continue;
    const auto order = [](const Waiting& one) { return std::tie(one.due, one.sequence); };
    if (!found || order(level.front()) < order(*first)) first = level.begin();
    found = true;
  }
  assert(found && "nothing waits");
  return first;
}

void WaitingSet::Place(Flow& flow) {
  if (flow.requests > 0) {
    flow.line->turns.Enter(flow, Front(flow)->sequence);
  } else if (!flow.line->turns.Rest(flow)) {
    Release(flow);
  }
}

void WaitingSet::Place(Line& line) {
  Displace(line);
  line.totals.held_until = line.holds.empty() ? kNever : line.holds.begin()->first;
  const TimePoint ready_at = ReadyAt(line.totals, line.group->limits, closing_);
  if (line.totals.requests == 0) {
    line.place = Line::kAbsent;
    while (!line.flows.empty()) Release(line.flows.begin()->second);
    line.turns = {};
  } else if (ready_at == kAtOnce) {
    line.place = Line::kReady;
  } else {
    line.place = Line::kDelayed;
    line.delay_node.value() = {ready_at, &line};
    line.delayed_until = ready_at;
    delayed_.insert(std::move(line.delay_node));
  }
  EnterTurns(line);
}

void WaitingSet::Displace(Line& line) {
  if (line.place == Line::kDelayed) {
    line.delay_node = delayed_.extract({line.delayed_until, &line});
  }
  line.place = Line::kAbsent;
}

void WaitingSet::EnterTurns(Line& line) {
  Group& group = *line.group;
  if (line.place == Line::kReady) {
    group.turns.Enter(line, Front(line)->sequence);
  } else {
    group.turns.Exit(line);
    line.pace.Reset();
  }
  if (Line* const first = group.turns.First(); first != nullptr) {
    turns_.Enter(group, Front(*first)->sequence);
  } else {
    turns_.Exit(group);
  }
}

}  // namespace normd

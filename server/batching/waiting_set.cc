#include "server/batching/waiting_set.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <limits>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

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

}  // namespace

absl::Status WaitingSet::Add(std::unique_ptr<Request>& request, TimePoint now) {
  Group& group = GroupFor(*request->model);
  if (group.requests >= group.max_requests) {
    const std::int64_t waiting = group.requests;
    DropIfEmpty(group);
    return absl::ResourceExhaustedError(absl::StrCat("queue of model \"", request->model->name(),
                                                     "\": ", waiting,
                                                     " requests wait, as many as may"));
  }
  Line& line = group.lines[IndexOf(request->dtype)];
  if (spare_.empty()) spare_.emplace_back();
  line.waiting.splice(line.waiting.end(), spare_, spare_.begin());
  const auto waiting = std::prev(line.waiting.end());
  request->admitted = now;
  waiting->facts = {request->geometry.rows, request->geometry.LargerBytes(), now};
  waiting->sequence = next_sequence_++;
  waiting->line = &line;

  const bool unique = by_id_.emplace(request->id, waiting).second;
  assert(unique && "two requests of one id");
  static_cast<void>(unique);
  if (request->deadline != kNever) deadlines_.emplace(request->deadline, request->id);
  ++group.requests;
  if (line.totals.requests++ == 0) line.totals.oldest = now;
  line.totals.rows += waiting->facts.rows;
  line.totals.bytes += waiting->facts.bytes;
  request->model->metrics().AddQueued(1);
  waiting->request = std::move(request);
  // A line that may already go stays where it is: its front is the same.
  if (line.place != Line::kReady) Place(line);
  return absl::OkStatus();
}

std::unique_ptr<Request> WaitingSet::Remove(std::uint64_t id, TimePoint now) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Line& line = *found->second->line;
  std::unique_ptr<Request> request = Extract(found->second, now);
  Place(line);
  DropIfEmpty(*line.group);
  return request;
}

std::vector<std::unique_ptr<Request>> WaitingSet::RemoveExpired(TimePoint now) {
  std::vector<std::unique_ptr<Request>> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(Remove(deadlines_.begin()->second, now));
  }
  return expired;
}

std::vector<std::unique_ptr<Request>> WaitingSet::RemoveAll(TimePoint now) {
  std::vector<std::unique_ptr<Request>> all;
  all.reserve(by_id_.size());
  for (auto& [model, group] : groups_) {
    for (Line& line : group->lines) {
      Displace(line);
      while (!line.waiting.empty()) all.push_back(Extract(line.waiting.begin(), now));
    }
    spare_groups_.push_back(std::move(group));
  }
  groups_.clear();
  return all;
}

std::unique_ptr<Batch> WaitingSet::TakeBatch(TimePoint now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Line& due = *delayed_.begin()->second;
    Displace(due);
    due.place = Line::kReady;
    due.ready_sequence = due.waiting.front().sequence;
    ready_.emplace(due.ready_sequence, &due);
  }
  if (ready_.empty()) return nullptr;
  Line& line = *ready_.begin()->second;
  Group& group = *line.group;

  // The policy sees no more than the first request that cannot be part of the batch.
  prefix_.clear();
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  for (const Waiting& waiting : line.waiting) {
    prefix_.push_back(waiting.facts);
    rows += waiting.facts.rows;
    bytes += waiting.facts.bytes;
    if (rows > group.limits.max_rows || bytes > group.limits.max_bytes) break;
  }
  const BatchDecision decision = DecideBatch(prefix_, group.limits, now, closing_);
  assert(decision.take > 0 && "ReadyAt and DecideBatch disagree");

  auto batch = std::make_unique<Batch>();
  batch->id = next_batch_id_++;
  batch->model = line.waiting.front().request->model;
  batch->dtype = line.dtype;
  batch->taken = now;
  batch->requests.reserve(decision.take);
  for (std::size_t i = 0; i < decision.take; ++i) {
    batch->rows += line.waiting.front().facts.rows;
    batch->bytes += line.waiting.front().facts.bytes;
    batch->requests.push_back(Extract(line.waiting.begin(), now));
  }
  Place(line);
  DropIfEmpty(group);
  return batch;
}

void WaitingSet::Close() {
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

WaitingSet::Group& WaitingSet::GroupFor(const Model& model) {
  std::unique_ptr<Group>& group = groups_[&model];
  if (group != nullptr) return *group;
  if (spare_groups_.empty()) {
    group = std::make_unique<Group>();
  } else {
    group = std::move(spare_groups_.back());
    spare_groups_.pop_back();
  }
  const v1::BatchingConfig& config = model.config().batching();
  group->model = &model;
  group->limits = LimitsOf(config, options_.limits);
  group->max_requests =
      config.has_max_queue_requests() ? config.max_queue_requests() : options_.max_queue_requests;
  for (std::size_t i = 0; i < group->lines.size(); ++i) {
    group->lines[i].group = group.get();
    group->lines[i].dtype = static_cast<norm::DType>(i + 1);
  }
  return *group;
}

// Only models with waiting requests have a group, so that none outlives its model and none is found
// by a later model at the same address.
void WaitingSet::DropIfEmpty(Group& group) {
  if (group.requests > 0) return;
  const auto found = groups_.find(group.model);
  spare_groups_.push_back(std::move(found->second));
  groups_.erase(found);
}

// Leaves the line's place as it is: the caller calls Place when it has extracted all it wants.
std::unique_ptr<Request> WaitingSet::Extract(Waitings::iterator waiting, TimePoint now) {
  Line& line = *waiting->line;
  std::unique_ptr<Request> request = std::move(waiting->request);
  by_id_.erase(request->id);
  if (request->deadline != kNever) deadlines_.erase({request->deadline, request->id});
  --line.group->requests;
  --line.totals.requests;
  line.totals.rows -= waiting->facts.rows;
  line.totals.bytes -= waiting->facts.bytes;
  spare_.splice(spare_.begin(), line.waiting, waiting);
  if (!line.waiting.empty()) line.totals.oldest = line.waiting.front().facts.admitted;
  request->stages[Stage::kQueue] = now - request->admitted;
  request->model->metrics().AddQueued(-1);
  return request;
}

void WaitingSet::Place(Line& line) {
  Displace(line);
  if (line.waiting.empty()) return;
  const TimePoint ready_at = ReadyAt(line.totals, line.group->limits, closing_);
  if (ready_at == kAtOnce) {
    line.place = Line::kReady;
    line.ready_sequence = line.waiting.front().sequence;
    ready_.emplace(line.ready_sequence, &line);
  } else {
    line.place = Line::kDelayed;
    line.delayed_until = ready_at;
    delayed_.emplace(ready_at, &line);
  }
}

void WaitingSet::Displace(Line& line) {
  if (line.place == Line::kReady) ready_.erase({line.ready_sequence, &line});
  if (line.place == Line::kDelayed) delayed_.erase({line.delayed_until, &line});
  line.place = Line::kAbsent;
}

}  // namespace normd

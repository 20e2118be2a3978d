#include "server/metrics/traffic_history.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace normd {
namespace {

std::int64_t RequestsOf(const DurationCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Null where it was not called before.
const MethodTraffic* Find(const ModelTraffic* before, Method method) {
  if (before == nullptr) return nullptr;
  for (const MethodTraffic& calls : before->methods) {
    if (calls.method == method) return &calls;
  }
  return nullptr;
}

template <std::size_t kCount>
void Add(std::array<std::int64_t, kCount>& sum, const std::array<std::int64_t, kCount>& more,
         std::int64_t factor = 1) {
  for (std::size_t i = 0; i < kCount; ++i) sum[i] += factor * more[i];
}

template <std::size_t kCount>
bool AnyNegative(const std::array<std::int64_t, kCount>& counts) {
  return std::any_of(counts.begin(), counts.end(), [](std::int64_t count) { return count < 0; });
}

MethodTraffic DifferenceOf(const MethodTraffic& now, const MethodTraffic* before) {
  if (before == nullptr) return now;
  MethodTraffic difference = now;
  difference.failed -= before->failed;
  Add(difference.durations, before->durations, -1);
  return difference.failed < 0 || AnyNegative(difference.durations) ? now : difference;
}

ModelTraffic DifferenceOf(const ModelTraffic& now, const ModelTraffic* before) {
  ModelTraffic difference{now.model, {}, now.rejected, now.queued};
  for (const MethodTraffic& calls : now.methods) {
    MethodTraffic added = DifferenceOf(calls, Find(before, calls.method));
    if (RequestsOf(added.durations) > 0 || added.failed > 0) difference.methods.push_back(added);
  }
  if (before != nullptr) {
    Add(difference.rejected, before->rejected, -1);
    if (AnyNegative(difference.rejected)) difference.rejected = now.rejected;
  }
  return difference;
}

Traffic DifferenceOf(const Traffic& now, const Traffic& before) {
  std::map<absl::string_view, const ModelTraffic*> models;
  for (const ModelTraffic& model : before.models) models[model.model] = &model;
  Traffic difference{{}, now.lanes, now.saturation, now.inflight_bytes, now.refused_requests};
  Add(difference.refused_requests, before.refused_requests, -1);
  for (const ModelTraffic& model : now.models) {
    const auto found = models.find(model.model);
    difference.models.push_back(
        DifferenceOf(model, found == models.end() ? nullptr : found->second));
  }
  std::map<std::pair<absl::string_view, absl::string_view>, double> busy;
  for (const LaneBusyTime& lane : before.lanes) busy[{lane.device, lane.lane}] = lane.busy_seconds;
  for (LaneBusyTime& lane : difference.lanes) lane.busy_seconds -= busy[{lane.device, lane.lane}];
  return difference;
}

// The sums of calls that are added one after the other.
class Summing {
 public:
  void Add(const MethodTraffic& calls) {
    failed_ += calls.failed;
    normd::Add(durations_, calls.durations);
  }
  CallSums Take() const {
    return {RequestsOf(durations_), failed_, QuantileOf(durations_, 0.5),
            QuantileOf(durations_, 0.99)};
  }

 private:
  std::int64_t failed_ = 0;
  DurationCounts durations_{};
};

}  // namespace

std::optional<double> QuantileOf(const DurationCounts& counts, double share) {
  const absl::Span<const std::int64_t> bounds = DurationScale().bounds;
  const double scale = DurationScale().recorded_per_exposed;
  const std::int64_t all = RequestsOf(counts);
  if (all == 0) return std::nullopt;
  const double rank = share * static_cast<double>(all);
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    if (count > 0 && below + count >= rank) {
      const double low = i == 0 ? 0 : static_cast<double>(bounds[i - 1]);
      const double high = static_cast<double>(bounds[i]);
      return (low + (high - low) * (rank - below) / count) / scale;
    }
    below += count;
  }
  return static_cast<double>(bounds.back()) / scale;
}

void TrafficHistory::Add(Traffic reading, TimePoint at) {
  MutexLock lock(mutex_);
  if (last_.has_value()) {
    const double seconds = std::chrono::duration<double>(at - last_at_).count();
    Elapsed elapsed{seconds, DifferenceOf(reading, *last_)};
    TrafficInterval interval{seconds, {}, 0, reading.saturation, reading.inflight_bytes, {}, {}};
    interval.refused_requests = elapsed.traffic.refused_requests;
    Summing all;
    std::vector<ModelTraffic>& models = elapsed.traffic.models;
    for (const ModelTraffic& model : models) {
      interval.queued += model.queued;
      normd::Add(interval.rejected, model.rejected);
      for (const MethodTraffic& calls : model.methods) all.Add(calls);
    }
    interval.calls = all.Take();
    // A model that nobody calls takes no memory here.
    std::erase_if(models, [](const ModelTraffic& model) { return model.methods.empty(); });
    models.shrink_to_fit();
    // Both or neither, if memory is short.
    minute_.push_back(std::move(elapsed));
    try {
      intervals_.push_back(interval);
    } catch (...) {
      minute_.pop_back();
      throw;
    }
    if (minute_.size() > kMinuteIntervals) minute_.pop_front();
    if (intervals_.size() > kIntervals) intervals_.pop_front();
  }
  last_ = std::move(reading);
  last_at_ = at;
}

RecentTraffic TrafficHistory::Recent() const {
  RecentTraffic recent;
  Summing all;
  std::map<std::pair<absl::string_view, Method>, Summing> calls;
  std::map<std::pair<absl::string_view, absl::string_view>, double> busy;
  MutexLock lock(mutex_);
  recent.at = last_at_;
  recent.intervals.assign(intervals_.begin(), intervals_.end());
  for (const Elapsed& elapsed : minute_) {
    recent.seconds += elapsed.seconds;
    for (const LaneBusyTime& lane : elapsed.traffic.lanes) {
      busy[{lane.device, lane.lane}] += lane.busy_seconds;
    }
    for (const ModelTraffic& model : elapsed.traffic.models) {
      for (const MethodTraffic& of_method : model.methods) {
        all.Add(of_method);
        calls[{model.model, of_method.method}].Add(of_method);
      }
    }
  }
  recent.all = all.Take();
  for (const auto& [key, sums] : calls) {
    recent.calls.push_back({std::string(key.first), key.second, sums.Take()});
  }
  for (const auto& [key, seconds] : busy) {
    recent.lanes.push_back({std::string(key.first), std::string(key.second), seconds});
  }
  return recent;
}

}  // namespace normd

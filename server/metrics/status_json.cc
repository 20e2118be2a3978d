#include "server/metrics/status_json.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "prometheus/metric_family.h"

namespace normd {
namespace {

using Json = nlohmann::ordered_json;
using prometheus::MetricFamily;
using prometheus::MetricType;

// A file's name or a parser's text may be of any length.
constexpr std::size_t kMostErrorBytes = 500;

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Three digits are enough for a line, and shorter than seventeen.
double Rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 2);
  return unit < 1 ? std::round(value / unit) / std::round(1 / unit) : std::round(value);
}

Json OrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

void AddSums(const CallSums& sums, Json& to) {
  to["requests"] = sums.requests;
  to["failed"] = sums.failed;
  to["p50"] = OrNull(sums.p50);
  to["p99"] = OrNull(sums.p99);
}

Json LastMinute(const RecentTraffic& traffic) {
  Json minute{{"seconds", traffic.seconds}};
  AddSums(traffic.all, minute);
  Json& calls = minute["calls"] = Json::array();
  for (const RecentCalls& recent : traffic.calls) {
    Json row{{"model", recent.model}, {"method", std::string(MethodName(recent.method))}};
    AddSums(recent.calls, row);
    calls.push_back(std::move(row));
  }
  Json& lanes = minute["lanes"] = Json::array();
  for (const LaneBusyTime& lane : traffic.lanes) {
    const double share = traffic.seconds > 0 ? lane.busy_seconds / traffic.seconds : 0;
    lanes.push_back({{"device", lane.device}, {"lane", lane.lane}, {"busy", Rounded(share)}});
  }
  return minute;
}

// One list for each line, so that a name stands once and not for each point.
Json Lines(const RecentTraffic& traffic) {
  Json lines = Json::object();
  for (const char* name : {"seconds", "requests_per_second", "failed_per_second", "p50", "p99",
                           "saturation", "queued", "inflight_bytes"}) {
    lines[name] = Json::array();
  }
  const auto rounded = [](const std::optional<double>& value) {
    return value.has_value() ? Json(Rounded(*value)) : Json(nullptr);
  };
  for (const TrafficInterval& interval : traffic.intervals) {
    const auto rate = [&](std::int64_t count) {
      return Rounded(static_cast<double>(count) / std::max(interval.seconds, 1e-3));
    };
    lines["seconds"].push_back(Rounded(interval.seconds));
    lines["requests_per_second"].push_back(rate(interval.calls.requests));
    lines["failed_per_second"].push_back(rate(interval.calls.failed));
    lines["p50"].push_back(rounded(interval.calls.p50));
    lines["p99"].push_back(rounded(interval.calls.p99));
    lines["saturation"].push_back(Rounded(interval.saturation));
    lines["queued"].push_back(interval.queued);
    lines["inflight_bytes"].push_back(interval.inflight_bytes);
  }
  return lines;
}

// Adds `reason` if it was given in the last ten minutes; `count` is that of an interval.
template <typename Count>
void AddRefusals(const RecentTraffic& traffic, std::string reason, Count count, Json& refusals) {
  std::int64_t minute = 0;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < traffic.intervals.size(); ++i) {
    const std::int64_t refused = count(traffic.intervals[i]);
    all += refused;
    if (i + TrafficHistory::kMinuteIntervals >= traffic.intervals.size()) minute += refused;
  }
  if (all == 0) return;
  refusals.push_back({{"reason", std::move(reason)}, {"minute", minute}, {"ten_minutes", all}});
}

Json Refusals(const RecentTraffic& traffic) {
  Json refusals = Json::array();
  for (std::size_t i = 0; i < kRejections; ++i) {
    AddRefusals(
        traffic, std::string(RejectionName(static_cast<Rejection>(i))),
        [i](const TrafficInterval& interval) { return interval.rejected[i]; }, refusals);
  }
  for (std::size_t i = 0; i < kRequestRefusals; ++i) {
    AddRefusals(
        traffic, absl::StrCat("HTTP status ", RefusalStatusName(i)),
        [i](const TrafficInterval& interval) { return interval.refused_requests[i]; }, refusals);
  }
  return refusals;
}

Json Models(const std::vector<ModelFacts>& models) {
  Json list = Json::array();
  for (const ModelFacts& model : models) {
    list.push_back({{"name", model.name},
                    {"version", model.version},
                    {"state", model.loaded ? "loaded" : "failed"},
                    {"error", model.error.substr(0, kMostErrorBytes)},
                    {"age", Rounded(Seconds(model.age))}});
  }
  return list;
}

Json Series(const std::vector<MetricFamily>& families) {
  Json all = Json::object();
  for (const MetricFamily& family : families) {
    if (family.type != MetricType::Counter && family.type != MetricType::Gauge) continue;
    Json& list = all[family.name] = Json::array();
    for (const prometheus::ClientMetric& series : family.metric) {
      Json one = Json::object();
      for (const auto& label : series.label) one[label.name] = label.value;
      one["value"] = family.type == MetricType::Counter ? series.counter.value : series.gauge.value;
      list.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace

std::string MakeStatusJson(const ServerFacts& facts, const RecentTraffic& traffic, TimePoint now,
                           const std::vector<MetricFamily>& families) {
  Json status;
  status["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  status["ready"] = facts.not_ready.empty();
  status["not_ready"] = facts.not_ready;
  status["reading_age"] = Rounded(Seconds(now - traffic.at));
  status["minute"] = LastMinute(traffic);
  status["lines"] = Lines(traffic);
  status["refusals"] = Refusals(traffic);
  status["models"] = Models(facts.models);
  status["metrics"] = Series(families);
  // Replaces bytes that are not UTF-8; the default would throw.
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace normd

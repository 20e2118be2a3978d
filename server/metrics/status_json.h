// The text of /status.json, which the live page shows.

#ifndef NORMD_SERVER_METRICS_STATUS_JSON_H_
#define NORMD_SERVER_METRICS_STATUS_JSON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/metrics/traffic_history.h"

namespace prometheus {
struct MetricFamily;
}  // namespace prometheus

namespace normd {

// A version of a model.
struct ModelFacts {
  std::string name;
  std::int64_t version = 0;
  bool loaded = false;
  std::string error;  // The last load's, which may have failed while an older state serves.
  Duration age{};     // Since the last load.
};

// What the metrics do not tell.
struct ServerFacts {
  std::string not_ready;  // Why; empty when it is ready.
  std::vector<ModelFacts> models;
};

// One JSON object. Durations are in seconds; `metrics` holds those of `families` that are no
// histograms, by name, with their labels. `now` is of the clock of `traffic`.
std::string MakeStatusJson(const ServerFacts& facts, const RecentTraffic& traffic, TimePoint now,
                           const std::vector<prometheus::MetricFamily>& families);

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_STATUS_JSON_H_

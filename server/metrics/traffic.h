// What all models' calls have come to so far, as one reading.

#ifndef NORMD_SERVER_METRICS_TRAFFIC_H_
#define NORMD_SERVER_METRICS_TRAFFIC_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "server/metrics/handles.h"
#include "server/metrics/histogram.h"

namespace normd {

// Calls by bucket of DurationScale, the last one above all bounds.
using DurationCounts = std::array<std::int64_t, kDurationBoundCount + 1>;
using RejectionCounts = std::array<std::int64_t, kRejections>;

struct MethodTraffic {
  Method method = Method::kNormalize;
  std::int64_t failed = 0;  // With any code but OK.
  DurationCounts durations{};
};

struct ModelTraffic {
  std::string model;                   // As the label `model`.
  std::vector<MethodTraffic> methods;  // Those that compute and were called, in Method's order.
  RejectionCounts rejected{};
  std::int64_t queued = 0;  // Now.
};

struct LaneBusyTime {
  std::string device;
  std::string lane;
  double busy_seconds = 0;
};

struct Traffic {
  std::vector<ModelTraffic> models;  // Each once.
  std::vector<LaneBusyTime> lanes;   // Each once; lanes never go.
  double saturation = 0;
  std::int64_t inflight_bytes = 0;
  RequestRefusalCounts refused_requests{};  // Over HTTP, before a call began.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_TRAFFIC_H_

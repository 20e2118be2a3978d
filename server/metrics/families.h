// The names, labels and help of all metrics, and their series as one scrape collects them.

#ifndef NORMD_SERVER_METRICS_FAMILIES_H_
#define NORMD_SERVER_METRICS_FAMILIES_H_

#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "prometheus/metric_family.h"
#include "server/metrics/histogram.h"

namespace normd {

struct Family {
  const char* name;
  prometheus::MetricType type;
  std::array<const char*, 4> labels;  // The rest null.
  const char* help;
};

namespace families {

using Labels = std::array<const char*, 4>;

constexpr Family CounterFamily(const char* name, const Labels& labels, const char* help) {
  return {name, prometheus::MetricType::Counter, labels, help};
}
constexpr Family GaugeFamily(const char* name, const Labels& labels, const char* help) {
  return {name, prometheus::MetricType::Gauge, labels, help};
}
constexpr Family HistogramFamily(const char* name, const Labels& labels, const char* help) {
  return {name, prometheus::MetricType::Histogram, labels, help};
}

inline constexpr Family kRequests =
    CounterFamily("normd_requests_total", {"model", "version", "method", "code"},
                  "Finished requests by gRPC status code; model and version are empty where the "
                  "request named no loaded model.");
inline constexpr Family kRequestDuration = HistogramFamily(
    "normd_request_duration_seconds", {"model", "method"},
    "Time from the arrival of a request to the hand-over of its response, failures included.");
inline constexpr Family kStageDuration = HistogramFamily(
    "normd_stage_duration_seconds", {"model", "stage"},
    "Time that completed Normalize requests and pieces of streams spent in each stage on the "
    "server; gather, copy_in, compute and copy_out are those of the whole batch.");
inline constexpr Family kBatchRequests =
    HistogramFamily("normd_batch_requests", {"model"}, "Requests computed in one batch.");
inline constexpr Family kBatchBytes =
    HistogramFamily("normd_batch_bytes", {"model"}, "Input bytes computed in one batch.");
inline constexpr Family kSaturation =
    GaugeFamily("normd_saturation_ratio", {},
                "The share of time in which calls had to wait, for a thread or for a lane: 0 when "
                "idle, near 1 when all wait.");
inline constexpr Family kQueueRequests =
    GaugeFamily("normd_queue_requests", {"model"}, "Requests that wait in the queue for a lane.");
inline constexpr Family kQueueLimitRequests = GaugeFamily(
    "normd_queue_limit_requests", {},
    "Requests that may wait for one model version; more are rejected (--max_queue_requests).");
inline constexpr Family kInflightBytes =
    GaugeFamily("normd_inflight_bytes", {}, "Tensor bytes of admitted, unfinished requests.");
inline constexpr Family kInflightLimitBytes =
    GaugeFamily("normd_inflight_limit_bytes", {},
                "Limit of normd_inflight_bytes; a request that would exceed it is rejected "
                "(--max_inflight_bytes).");
inline constexpr Family kRejected =
    CounterFamily("normd_rejected_total", {"model", "reason"},
                  "Requests refused at admission or at the queue, by reason.");
inline constexpr Family kRequestsRefused =
    CounterFamily("normd_requests_refused_total", {"status"},
                  "HTTP requests refused before a call began, by HTTP's status.");
inline constexpr Family kPayloadBytes = CounterFamily(
    "normd_payload_bytes_total", {"direction"},
    "Bytes of the messages of Normalize and NormalizeStream, received (in) and sent (out).");
inline constexpr Family kLaneBusy =
    CounterFamily("normd_lane_busy_seconds_total", {"device", "lane"},
                  "Time that a lane spent on batches; its rate is the lane's utilisation, 0 to 1.");
inline constexpr Family kLanes = GaugeFamily(
    "normd_lanes", {"device", "state"},
    "Lanes that take batches (working), and that stopped after a device error (retired).");
inline constexpr Family kDeviceCopied =
    CounterFamily("normd_device_copied_bytes_total", {"device", "direction"},
                  "Bytes that crossed the link to a device (in) and back (out), copied or mapped.");
inline constexpr Family kDeviceInfo = GaugeFamily("normd_device_info", {"device", "description"},
                                                  "1; the labels tell what each device is.");
inline constexpr Family kModelLoadDuration = HistogramFamily(
    "normd_model_load_duration_seconds", {"model"},
    "Duration of successful model loads: reading, checking and preparing the backend.");
inline constexpr Family kModelsWithoutSeries =
    GaugeFamily("normd_models_without_series", {},
                "Loaded model versions beyond --max_model_series, which are counted together under "
                "model=\"_other\".");
inline constexpr Family kModelVersions =
    GaugeFamily("normd_model_versions", {"state"},
                "Model versions that serve (loaded), and whose last load failed (failed), even if "
                "an earlier state of the version still serves.");
inline constexpr Family kModelLoadFailures =
    CounterFamily("normd_model_load_failures_total", {},
                  "Failed loads: at the start, on request, and after a change of the repository.");
inline constexpr Family kRepositoryPolls =
    CounterFamily("normd_model_repository_polls_total", {"result"},
                  "Polls of the model repository (--model_poll_interval): complete when all its "
                  "folders could be listed, else incomplete.");
inline constexpr Family kIdentityCalls =
    CounterFamily("normd_identity_calls_total", {"identity", "outcome"},
                  "Finished calls of each identity of the policy: ok, denied (no identity or no "
                  "right), limited (RESOURCE_EXHAUSTED), failed (anything else).");
inline constexpr Family kIdentityInputBytes =
    CounterFamily("normd_identity_input_bytes_total", {"identity"},
                  "Input bytes of each identity's finished calls, as far as they were known.");
inline constexpr Family kPoolBytes =
    GaugeFamily("normd_pool_bytes", {"pool", "state"},
                "Bytes of a memory pool that are in use (used) and kept for reuse (free).");
inline constexpr Family kConnections =
    GaugeFamily("normd_connections", {"port"}, "Open connections of a port for requests.");
inline constexpr Family kConnectionsLimit = GaugeFamily(
    "normd_connections_limit", {"port"},
    "Limit of normd_connections: --max_connections, or what the file descriptors allow.");
inline constexpr Family kConnectionsAccepted = CounterFamily(
    "normd_connections_accepted_total", {"port"}, "Accepted connections, without refused ones.");
inline constexpr Family kConnectionsRefused = CounterFamily(
    "normd_connections_refused_total", {"port", "reason"},
    "Connections that were closed at once, by the limit that they would have exceeded.");
inline constexpr Family kConnectionsEnded = CounterFamily(
    "normd_connections_ended_total", {"port", "reason"},
    "Connections that the server ended, by reason: how they began, or what they held.");
inline constexpr Family kUndeliveredBytes =
    GaugeFamily("normd_transport_undelivered_bytes", {},
                "Estimate of the received bytes of messages that are incomplete or not yet read.");
inline constexpr Family kCertificateNotAfter =
    GaugeFamily("normd_certificate_not_after_seconds", {},
                "Expiry of the certificate in use, in seconds since 1970; only with TLS.");
inline constexpr Family kCertificateReloads = CounterFamily(
    "normd_certificate_reloads_total", {"result"},
    "Times that the certificate's files had changed, by whether they were taken or refused.");
inline constexpr Family kPolicyReloads = CounterFamily(
    "normd_policy_reloads_total", {"result"},
    "Times that the files of the policy had changed, by whether they were taken or refused.");
inline constexpr Family kSharedRegions =
    GaugeFamily("normd_shared_regions", {"kind"},
                "Regions of clients' memory that are mapped: named ones, passed descriptors, "
                "memory of devices.");
inline constexpr Family kSharedRegionBytes = GaugeFamily(
    "normd_shared_region_bytes", {"kind"}, "Bytes of the mapped regions of clients' memory.");
inline constexpr Family kSharedRegionsRefused =
    CounterFamily("normd_shared_regions_refused_total", {"reason"},
                  "Registrations of regions that were refused, by reason.");
inline constexpr Family kSharedConnections =
    GaugeFamily("normd_shared_connections", {}, "Open connections at --shared_memory_listen.");
inline constexpr Family kSharedConnectionsEnded =
    CounterFamily("normd_shared_connections_ended_total", {"reason"},
                  "Connections at --shared_memory_listen that the server ended, by reason.");
inline constexpr Family kSharedLockedBytes = GaugeFamily(
    "normd_shared_locked_bytes", {},
    "Bytes of regions whose pages are locked, so that devices read and write them directly.");
inline constexpr Family kSharedRegionsNotLocked =
    CounterFamily("normd_shared_regions_not_locked_total", {"reason"},
                  "Regions of host memory whose pages were not locked for devices, by reason.");
inline constexpr Family kSharedRegionsBroken =
    CounterFamily("normd_shared_regions_broken_total", {},
                  "Requests that failed because pages of a region were gone: its file was made "
                  "shorter, or its file system is full.");
inline constexpr Family kSharedTensorBytes =
    CounterFamily("normd_shared_tensor_bytes_total", {"direction", "memory"},
                  "Tensor bytes read from regions (in) and written to them (out); "
                  "normd_payload_bytes_total does not include them.");
inline constexpr Family kLostLogLines =
    CounterFamily("normd_log_lines_lost_total", {},
                  "Lines of the log and of the request log that were dropped because stderr did "
                  "not take them in time.");
inline constexpr Family kReady =
    GaugeFamily("normd_ready", {}, "1 while the server is ready for requests, else 0.");
inline constexpr Family kBuildInfo = GaugeFamily(
    "normd_build_info", {"version", "cuda"},
    "1; the labels tell the server's version and its CUDA version, empty without CUDA.");

}  // namespace families

// Collects one scrape. `labels` are the values of the family's labels, in its order; there must be
// as many. Not thread-safe.
class FamilyList {
 public:
  using Labels = std::initializer_list<absl::string_view>;

  // For a family of counters or of gauges.
  void Add(const Family& family, Labels labels, double value);
  // For a family of histograms.
  void Add(const Family& family, Labels labels, const Histogram& histogram);

  // In the order of their first series. Families without one are left out.
  std::vector<prometheus::MetricFamily> Take() && { return std::move(families_); }

 private:
  prometheus::ClientMetric& NewSeries(const Family& family, Labels labels);

  std::vector<prometheus::MetricFamily> families_;
  absl::flat_hash_map<const Family*, std::size_t> indexes_;  // In that list.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_FAMILIES_H_

#include "server/metrics/families.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

namespace normd {
namespace {

using prometheus::MetricType;

struct Description {
  const char* name;
  MetricType type;
  std::array<const char*, 4> labels;  // The rest null.
  const char* help;
};

// In the order of the enum.
constexpr Description kDescriptions[] = {
    {"normd_requests_total",
     MetricType::Counter,
     {"model", "version", "method", "code"},
     "Finished requests by gRPC status code; model and version are empty where the request named "
     "no loaded model."},
    {"normd_request_duration_seconds",
     MetricType::Histogram,
     {"model", "method"},
     "Time from the arrival of a request to the hand-over of its response, failures included."},
    {"normd_stage_duration_seconds",
     MetricType::Histogram,
     {"model", "stage"},
     "Time that completed Normalize requests and pieces of streams spent in each stage on the "
     "server; gather, copy_in, compute and copy_out are those of the whole batch."},
    {"normd_batch_requests", MetricType::Histogram, {"model"}, "Requests computed in one batch."},
    {"normd_batch_bytes", MetricType::Histogram, {"model"}, "Input bytes computed in one batch."},
    {"normd_saturation_ratio",
     MetricType::Gauge,
     {},
     "The share of time in which calls had to wait, for a thread or for a lane: 0 when idle, near "
     "1 "
     "when all wait."},
    {"normd_queue_requests",
     MetricType::Gauge,
     {"model"},
     "Requests that wait in the queue for a lane."},
    {"normd_queue_limit_requests",
     MetricType::Gauge,
     {},
     "Requests that may wait for one model version; more are rejected (--max_queue_requests)."},
    {"normd_inflight_bytes",
     MetricType::Gauge,
     {},
     "Tensor bytes of admitted, unfinished requests."},
    {"normd_inflight_limit_bytes",
     MetricType::Gauge,
     {},
     "Limit of normd_inflight_bytes; a request that would exceed it is rejected "
     "(--max_inflight_bytes)."},
    {"normd_rejected_total",
     MetricType::Counter,
     {"model", "reason"},
     "Requests refused at admission or at the queue, by reason."},
    {"normd_requests_refused_total",
     MetricType::Counter,
     {"status"},
     "HTTP requests refused before a call began, by HTTP's status."},
    {"normd_payload_bytes_total",
     MetricType::Counter,
     {"direction"},
     "Bytes of the messages of Normalize and NormalizeStream, received (in) and sent (out)."},
    {"normd_lane_busy_seconds_total",
     MetricType::Counter,
     {"device", "lane"},
     "Time that a lane spent on batches; its rate is the lane's utilisation, 0 to 1."},
    {"normd_lanes",
     MetricType::Gauge,
     {"device", "state"},
     "Lanes that take batches (working), and that stopped after a device error (retired)."},
    {"normd_device_copied_bytes_total",
     MetricType::Counter,
     {"device", "direction"},
     "Bytes that crossed the link to a device (in) and back (out), copied or mapped."},
    {"normd_device_info",
     MetricType::Gauge,
     {"device", "description"},
     "1; the labels tell what each device is."},
    {"normd_model_load_duration_seconds",
     MetricType::Histogram,
     {"model"},
     "Duration of successful model loads: reading, checking and preparing the backend."},
    {"normd_models_without_series",
     MetricType::Gauge,
     {},
     "Loaded model versions beyond --max_model_series, which are counted together under "
     "model=\"_other\"."},
    {"normd_model_versions",
     MetricType::Gauge,
     {"state"},
     "Model versions that serve (loaded), and whose last load failed (failed), even if an earlier "
     "state of the version still serves."},
    {"normd_model_load_failures_total",
     MetricType::Counter,
     {},
     "Failed loads: at the start, on request, and after a change of the repository."},
    {"normd_model_repository_polls_total",
     MetricType::Counter,
     {"result"},
     "Polls of the model repository (--model_poll_interval): complete when all its folders could "
     "be listed, else incomplete."},
    {"normd_identity_calls_total",
     MetricType::Counter,
     {"identity", "outcome"},
     "Finished calls of each identity of the policy: ok, denied (no identity or no right), limited "
     "(RESOURCE_EXHAUSTED), failed (anything else)."},
    {"normd_identity_input_bytes_total",
     MetricType::Counter,
     {"identity"},
     "Input bytes of each identity's finished calls, as far as they were known."},
    {"normd_pool_bytes",
     MetricType::Gauge,
     {"pool", "state"},
     "Bytes of a memory pool that are in use (used) and kept for reuse (free)."},
    {"normd_connections", MetricType::Gauge, {"port"}, "Open connections of a port for requests."},
    {"normd_connections_limit",
     MetricType::Gauge,
     {"port"},
     "Limit of normd_connections: --max_connections, or what the file descriptors allow."},
    {"normd_connections_accepted_total",
     MetricType::Counter,
     {"port"},
     "Accepted connections, without refused ones."},
    {"normd_connections_refused_total",
     MetricType::Counter,
     {"port", "reason"},
     "Connections that were closed at once, by the limit that they would have exceeded."},
    {"normd_connections_ended_total",
     MetricType::Counter,
     {"port", "reason"},
     "Connections that the server ended, by reason: how they began, or what they held."},
    {"normd_transport_undelivered_bytes",
     MetricType::Gauge,
     {},
     "Estimate of the received bytes of messages that are incomplete or not yet read."},
    {"normd_certificate_not_after_seconds",
     MetricType::Gauge,
     {},
     "Expiry of the certificate in use, in seconds since 1970; only with TLS."},
    {"normd_certificate_reloads_total",
     MetricType::Counter,
     {"result"},
     "Times that the certificate's files had changed, by whether they were taken or refused."},
    {"normd_policy_reloads_total",
     MetricType::Counter,
     {"result"},
     "Times that the files of the policy had changed, by whether they were taken or refused."},
    {"normd_shared_regions",
     MetricType::Gauge,
     {"kind"},
     "Regions of clients' memory that are mapped: named ones, passed descriptors, memory of "
     "devices."},
    {"normd_shared_region_bytes",
     MetricType::Gauge,
     {"kind"},
     "Bytes of the mapped regions of clients' memory."},
    {"normd_shared_regions_refused_total",
     MetricType::Counter,
     {"reason"},
     "Registrations of regions that were refused, by reason."},
    {"normd_shared_connections",
     MetricType::Gauge,
     {},
     "Open connections at --shared_memory_listen."},
    {"normd_shared_connections_ended_total",
     MetricType::Counter,
     {"reason"},
     "Connections at --shared_memory_listen that the server ended, by reason."},
    {"normd_shared_locked_bytes",
     MetricType::Gauge,
     {},
     "Bytes of regions whose pages are locked, so that devices read and write them directly."},
    {"normd_shared_regions_not_locked_total",
     MetricType::Counter,
     {"reason"},
     "Regions of host memory whose pages were not locked for devices, by reason."},
    {"normd_shared_regions_broken_total",
     MetricType::Counter,
     {},
     "Requests that failed because pages of a region were gone: its file was made shorter, or "
     "its file system is full."},
    {"normd_shared_tensor_bytes_total",
     MetricType::Counter,
     {"direction", "memory"},
     "Tensor bytes read from regions (in) and written to them (out); normd_payload_bytes_total "
     "does not include them."},
    {"normd_log_lines_lost_total",
     MetricType::Counter,
     {},
     "Lines of the log and of the request log that were dropped because stderr did not take them "
     "in time."},
    {"normd_ready", MetricType::Gauge, {}, "1 while the server is ready for requests, else 0."},
    {"normd_build_info",
     MetricType::Gauge,
     {"version", "cuda"},
     "1; the labels tell the server's version and its CUDA version, empty without CUDA."},
};
static_assert(std::size(kDescriptions) == static_cast<std::size_t>(Family::kBuildInfo) + 1);

}  // namespace

FamilyList::FamilyList() {
  families_.reserve(std::size(kDescriptions));
  for (const Description& description : kDescriptions) {
    families_.push_back({description.name, description.help, description.type, {}});
  }
}

prometheus::ClientMetric& FamilyList::NewSeries(Family family, Labels labels) {
  const auto index = static_cast<std::size_t>(family);
  const auto& names = kDescriptions[index].labels;
  prometheus::ClientMetric& series = families_[index].metric.emplace_back();
  std::size_t next = 0;
  for (const absl::string_view value : labels) {
    assert(next < names.size() && names[next] != nullptr);
    series.label.push_back({names[next++], std::string(value)});
  }
  assert(next == names.size() || names[next] == nullptr);
  return series;
}

void FamilyList::Add(Family family, Labels labels, double value) {
  prometheus::ClientMetric& series = NewSeries(family, labels);
  const bool counter = kDescriptions[static_cast<std::size_t>(family)].type == MetricType::Counter;
  (counter ? series.counter.value : series.gauge.value) = value;
}

void FamilyList::Add(Family family, Labels labels, const Histogram& histogram) {
  assert(kDescriptions[static_cast<std::size_t>(family)].type == MetricType::Histogram);
  NewSeries(family, labels).histogram = histogram.Collect();
}

std::vector<prometheus::MetricFamily> FamilyList::Take() && {
  std::vector<prometheus::MetricFamily> used;
  for (prometheus::MetricFamily& family : families_) {
    if (!family.metric.empty()) used.push_back(std::move(family));
  }
  return used;
}

}  // namespace normd

// Metrics that a test can read.

#ifndef NORMD_TESTS_SUPPORT_COUNTING_METRICS_H_
#define NORMD_TESTS_SUPPORT_COUNTING_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/metrics/metrics.h"

namespace normd {

class CountingModelMetrics final : public ModelMetrics {
 public:
  void RecordRequest(Method, absl::StatusCode, Duration) override { ++requests; }
  void RecordStages(const StageTimes&, std::int64_t) override {}
  void RecordBatch(std::int64_t batch_requests_in, std::int64_t batch_bytes_in) override {
    ++batches;
    batch_requests += batch_requests_in;
    batch_bytes += batch_bytes_in;
  }
  void RecordRejection(Rejection reason) override {
    ++rejections_[static_cast<std::size_t>(reason)];
  }
  void AddQueued(std::int64_t count) override { queued += count; }
  void RecordLoad(Duration) override {}

  std::int64_t rejections(Rejection reason) const {
    return rejections_[static_cast<std::size_t>(reason)];
  }

  std::atomic<std::int64_t> requests{0};
  std::atomic<std::int64_t> batches{0};
  std::atomic<std::int64_t> batch_requests{0};
  std::atomic<std::int64_t> batch_bytes{0};
  std::atomic<std::int64_t> queued{0};

 private:
  std::array<std::atomic<std::int64_t>, 16> rejections_{};
};

class CountingIdentityMetrics final : public IdentityMetrics {
 public:
  void RecordCall(absl::StatusCode code, std::int64_t) override {
    ++calls[static_cast<std::size_t>(code)];
  }
  std::array<std::atomic<std::int64_t>, 17> calls{};  // By code.
};

class CountingLaneMetrics final : public LaneMetrics {
 public:
  void AddBusy(Duration duration) override { busy_ns += duration.count(); }
  void AddCopied(std::int64_t in_bytes, std::int64_t out_bytes) override {
    copied_in_bytes += in_bytes;
    copied_out_bytes += out_bytes;
  }
  void RecordRetired() override { retired = true; }

  std::atomic<std::int64_t> busy_ns{0};
  std::atomic<std::int64_t> copied_in_bytes{0};
  std::atomic<std::int64_t> copied_out_bytes{0};
  std::atomic<bool> retired{false};
};

class CountingConnectionMetrics final : public ConnectionMetrics {
 public:
  void RecordAccepted() override { ++accepted; }
  void RecordRefused(ConnectionRefusal reason) override {
    ++refused[static_cast<std::size_t>(reason)];
  }
  void RecordEnded(ConnectionEnding reason) override { ++ended[static_cast<std::size_t>(reason)]; }
  void SetOpen(std::int64_t connections) override { open = connections; }
  void SetLimit(std::int64_t connections) override { limit = connections; }
  void SetUndelivered(std::int64_t bytes) override { undelivered_bytes = bytes; }

  std::atomic<std::int64_t> accepted{0};
  std::array<std::atomic<std::int64_t>, kConnectionRefusals> refused{};
  std::array<std::atomic<std::int64_t>, kConnectionEndings> ended{};
  std::atomic<std::int64_t> open{0};
  std::atomic<std::int64_t> limit{0};
  std::atomic<std::int64_t> undelivered_bytes{0};
};

class CountingTlsMetrics final : public TlsMetrics {
 public:
  void SetNotAfter(std::int64_t seconds) override { not_after = seconds; }
  void RecordReload(bool was_taken) override { ++(was_taken ? taken : refused); }

  std::atomic<std::int64_t> not_after{0};
  std::atomic<std::int64_t> taken{0};
  std::atomic<std::int64_t> refused{0};
};

class CountingPolicyMetrics final : public PolicyMetrics {
 public:
  void RecordReload(bool was_taken) override { ++(was_taken ? taken : refused); }

  std::atomic<std::int64_t> taken{0};
  std::atomic<std::int64_t> refused{0};
};

class CountingRegionMetrics final : public RegionMetrics {
 public:
  void AddMapped(RegionPlane, std::int64_t more, std::int64_t more_bytes) override {
    mapped += more;
    mapped_bytes += more_bytes;
  }
  void RecordRefused(RegionRefusal reason) override { ++refused[static_cast<std::size_t>(reason)]; }
  void AddConnections(std::int64_t more) override { connections += more; }
  void RecordConnectionEnded(HandoverEnding reason) override {
    ++connections_ended[static_cast<std::size_t>(reason)];
  }
  void AddLocked(std::int64_t more) override { locked_bytes += more; }
  void RecordNotLocked(PageLockRefusal reason) override {
    ++not_locked[static_cast<std::size_t>(reason)];
  }
  void RecordBroken() override { ++broken; }
  void AddTensors(RegionMemory, std::int64_t more_in, std::int64_t more_out) override {
    in_bytes += more_in;
    out_bytes += more_out;
  }

  std::atomic<std::int64_t> mapped{0};
  std::atomic<std::int64_t> mapped_bytes{0};
  std::array<std::atomic<std::int64_t>, kRegionRefusals> refused{};  // By reason.
  std::atomic<std::int64_t> connections{0};
  std::array<std::atomic<std::int64_t>, kHandoverEndings> connections_ended{};  // By reason.
  std::atomic<std::int64_t> locked_bytes{0};
  std::array<std::atomic<std::int64_t>, kPageLockRefusals> not_locked{};  // By reason.
  std::atomic<std::int64_t> broken{0};
  std::atomic<std::int64_t> in_bytes{0};
  std::atomic<std::int64_t> out_bytes{0};
};

class CountingRepositoryMetrics final : public RepositoryMetrics {
 public:
  void SetVersions(const VersionCounts& counts) override {
    loaded = counts.loaded;
    failed = counts.failed;
  }
  void RecordLoadFailure() override { ++load_failures; }
  void RecordPoll(bool complete) override { ++(complete ? complete_polls : incomplete_polls); }

  std::atomic<std::int64_t> loaded{0};
  std::atomic<std::int64_t> failed{0};
  std::atomic<std::int64_t> load_failures{0};
  std::atomic<std::int64_t> complete_polls{0};
  std::atomic<std::int64_t> incomplete_polls{0};
};

// Thread-safe. Scrape and Collect are empty.
class CountingMetrics final : public Metrics {
 public:
  std::shared_ptr<ModelMetrics> ForModel(absl::string_view name, std::int64_t version) override;
  ModelMetrics& ForNoModel() override { return no_model; }
  std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view name) override;
  ConnectionMetrics& ForConnections(RequestPort port) override {
    return port == RequestPort::kGrpc ? connections : http_connections;
  }
  TlsMetrics& ForTls() override { return tls; }
  PolicyMetrics& ForPolicy() override { return policy; }
  RegionMetrics& ForRegions() override { return regions; }
  RepositoryMetrics& ForRepository() override { return repository; }
  LaneMetrics& ForLane(absl::string_view device, absl::string_view lane) override;
  void SetDevice(absl::string_view, absl::string_view) override {}
  void SetLimits(const MetricsLimits&) override {}
  void AddInflightBytes(std::int64_t bytes) override { inflight_bytes += bytes; }
  void AddPayload(std::int64_t, std::int64_t) override {}
  void SetReady(bool value) override { ready = value; }
  std::shared_ptr<void> WatchPool(std::string pool, std::function<PoolUse()> read) override;
  void WatchLostLogLines(std::function<std::int64_t()>) override {}
  void WatchSaturation(std::function<double()>) override {}
  std::string Scrape() override { return ""; }
  std::vector<prometheus::MetricFamily> Collect() override;
  std::vector<prometheus::MetricFamily> CollectServer() override;
  Traffic ReadTraffic() override { return {}; }

  std::int64_t CallsOf(const std::string& identity, absl::StatusCode code);

  CountingModelMetrics no_model;
  CountingConnectionMetrics connections;
  CountingConnectionMetrics http_connections;
  CountingTlsMetrics tls;
  CountingPolicyMetrics policy;
  CountingRegionMetrics regions;
  CountingRepositoryMetrics repository;
  std::atomic<std::int64_t> inflight_bytes{0};
  std::atomic<bool> ready{false};

 private:
  Mutex mutex_;
  std::map<std::pair<std::string, std::int64_t>, CountingModelMetrics> models_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, CountingIdentityMetrics> identities_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, CountingLaneMetrics> lanes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_COUNTING_METRICS_H_

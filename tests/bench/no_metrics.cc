#include "tests/bench/no_metrics.h"

#include "prometheus/metric_family.h"

namespace normd {
namespace {

class NoModelMetrics final : public ModelMetrics {
 public:
  void RecordRequest(Method, absl::StatusCode, Duration) override {}
  void RecordStages(const StageTimes&, std::int64_t) override {}
  void RecordBatch(std::int64_t, std::int64_t) override {}
  void RecordRejection(Rejection) override {}
  void AddQueued(std::int64_t) override {}
  void RecordLoad(Duration) override {}
};

class NoIdentityMetrics final : public IdentityMetrics {
 public:
  void RecordCall(absl::StatusCode, std::int64_t) override {}
};

class NoLaneMetrics final : public LaneMetrics {
 public:
  void AddBusy(Duration) override {}
  void AddCopied(std::int64_t, std::int64_t) override {}
  void RecordRetired() override {}
};

class NoConnectionMetrics final : public ConnectionMetrics {
 public:
  void RecordAccepted() override {}
  void RecordRefused(ConnectionRefusal) override {}
  void RecordEnded(ConnectionEnding) override {}
  void SetOpen(std::int64_t) override {}
  void SetLimit(std::int64_t) override {}
  void SetUndelivered(std::int64_t) override {}
};

class NoTlsMetrics final : public TlsMetrics {
 public:
  void SetNotAfter(std::int64_t) override {}
  void RecordReload(bool) override {}
};

class NoRegionMetrics final : public RegionMetrics {
 public:
  void AddMapped(RegionPlane, std::int64_t, std::int64_t) override {}
  void RecordRefused(RegionRefusal) override {}
  void AddConnections(std::int64_t) override {}
  void RecordConnectionEnded(HandoverEnding) override {}
  void AddLocked(std::int64_t) override {}
  void RecordNotLocked(PageLockRefusal) override {}
  void RecordBroken() override {}
  void AddTensors(RegionMemory, std::int64_t, std::int64_t) override {}
};

class NoRepositoryMetrics final : public RepositoryMetrics {
 public:
  void SetVersions(const VersionCounts&) override {}
  void RecordLoadFailure() override {}
  void RecordPoll(bool) override {}
};

class NoMetrics final : public Metrics {
 public:
  std::shared_ptr<ModelMetrics> ForModel(absl::string_view, std::int64_t) override {
    return {std::shared_ptr<void>(), &model_};
  }
  ModelMetrics& ForNoModel() override { return model_; }
  std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view) override {
    return {std::shared_ptr<void>(), &identity_};
  }
  ConnectionMetrics& ForConnections() override { return connections_; }
  TlsMetrics& ForTls() override { return tls_; }
  RegionMetrics& ForRegions() override { return regions_; }
  RepositoryMetrics& ForRepository() override { return repository_; }
  LaneMetrics& ForLane(absl::string_view, absl::string_view) override { return lane_; }
  void SetDevice(absl::string_view, absl::string_view) override {}
  void SetLimits(const MetricsLimits&) override {}
  void AddInflightBytes(std::int64_t) override {}
  void AddPayload(std::int64_t, std::int64_t) override {}
  void SetReady(bool) override {}
  std::shared_ptr<void> WatchPool(std::string, std::function<PoolUse()>) override {
    return nullptr;
  }
  void WatchLostLogLines(std::function<std::int64_t()>) override {}
  std::string Scrape() override { return ""; }
  std::vector<prometheus::MetricFamily> Collect() override { return {}; }

 private:
  NoModelMetrics model_;
  NoIdentityMetrics identity_;
  NoConnectionMetrics connections_;
  NoTlsMetrics tls_;
  NoRegionMetrics regions_;
  NoRepositoryMetrics repository_;
  NoLaneMetrics lane_;
};

}  // namespace

std::unique_ptr<Metrics> CreateNoMetrics() { return std::make_unique<NoMetrics>(); }

}  // namespace normd

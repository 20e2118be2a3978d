#include "tests/bench/no_metrics.h"

#include "prometheus/metric_family.h"

namespace normd {
namespace {

class NoMetrics final : public Metrics {
 public:
  std::shared_ptr<ModelMetrics> ForModel(absl::string_view, std::int64_t) override {
    return {std::shared_ptr<void>(), &model_};
  }
  ModelMetrics& ForNoModel() override { return model_; }
  std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view) override {
    return {std::shared_ptr<void>(), &identity_};
  }
  ConnectionMetrics& ForConnections(RequestPort) override { return connections_; }
  TlsMetrics& ForTls() override { return tls_; }
  PolicyMetrics& ForPolicy() override { return policy_; }
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
  void WatchSaturation(std::function<double()>) override {}
  std::string Scrape() override { return ""; }
  std::vector<prometheus::MetricFamily> Collect() override { return {}; }
  std::vector<prometheus::MetricFamily> CollectServer() override { return {}; }
  Traffic ReadTraffic() override { return {}; }

 private:
  ModelMetrics model_;
  IdentityMetrics identity_;
  ConnectionMetrics connections_;
  TlsMetrics tls_;
  PolicyMetrics policy_;
  RegionMetrics regions_;
  RepositoryMetrics repository_;
  LaneMetrics lane_;
};

}  // namespace

std::unique_ptr<Metrics> CreateNoMetrics() { return std::make_unique<NoMetrics>(); }

}  // namespace normd

#include "tests/support/counting_metrics.h"

#include "prometheus/metric_family.h"

namespace normd {

std::shared_ptr<ModelMetrics> CountingMetrics::ForModel(absl::string_view name,
                                                        std::int64_t version) {
  MutexLock lock(mutex_);
  // This object owns it.
  return {std::shared_ptr<void>(), &models_[{std::string(name), version}]};
}

std::shared_ptr<IdentityMetrics> CountingMetrics::ForIdentity(absl::string_view name) {
  MutexLock lock(mutex_);
  return {std::shared_ptr<void>(), &identities_[std::string(name)]};
}

std::int64_t CountingMetrics::CallsOf(const std::string& identity, absl::StatusCode code) {
  MutexLock lock(mutex_);
  return identities_[identity].calls[static_cast<std::size_t>(code)];
}

LaneMetrics& CountingMetrics::ForLane(absl::string_view device, absl::string_view lane) {
  MutexLock lock(mutex_);
  return lanes_[{std::string(device), std::string(lane)}];
}

std::shared_ptr<void> CountingMetrics::WatchPool(std::string /*pool*/,
                                                 std::function<PoolUse()> /*read*/) {
  return nullptr;
}

std::vector<prometheus::MetricFamily> CountingMetrics::Collect() { return {}; }
std::vector<prometheus::MetricFamily> CountingMetrics::CollectServer() { return {}; }

}  // namespace normd

#include "tests/support/counting_metrics.h"

#include "prometheus/metric_family.h"

namespace normd {

ModelMetrics& CountingMetrics::ForModel(absl::string_view name, std::int64_t version) {
  MutexLock lock(mutex_);
  return models_[{std::string(name), version}];
}

LaneMetrics& CountingMetrics::ForLane(absl::string_view device, absl::string_view lane) {
  MutexLock lock(mutex_);
  return lanes_[{std::string(device), std::string(lane)}];
}

std::shared_ptr<void> CountingMetrics::WatchPool(std::string /*pool*/,
                                                 std::function<PoolUse()> /*read*/) {
  return nullptr;
}

std::vector<prometheus::MetricFamily> CountingMetrics::Collect() const { return {}; }

}  // namespace normd

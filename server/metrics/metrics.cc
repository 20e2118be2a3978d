#include "server/metrics/metrics.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/families.h"
#include "server/metrics/identity_series.h"
#include "server/metrics/series_set.h"

namespace normd {

// A pool that is read at each scrape, until Stop. The mutex is held while `read` runs, unlike
// elsewhere in the server, because Stop has to wait for a read in progress: the pool may be gone
// once it returns.
class Metrics::PoolWatch {
 public:
  PoolWatch(std::string pool, std::function<PoolUse()> read)
      : pool_(std::move(pool)), read_(std::move(read)) {}

  const std::string& pool() const { return pool_; }
  PoolUse Read() {
    MutexLock lock(mutex_);
    return read_ ? read_() : PoolUse{};
  }
  void Stop() {
    MutexLock lock(mutex_);
    read_ = nullptr;
  }

 private:
  const std::string pool_;
  Mutex mutex_;
  std::function<PoolUse()> read_ ABSL_GUARDED_BY(mutex_);
};

Metrics::Metrics(BuildInfo build, const MetricsOptions& options)
    : build_(std::move(build)),
      models_(SeriesSet::Create(options.max_model_series)),
      identities_(IdentitySeriesSet::Create()) {}

std::shared_ptr<ModelMetrics> Metrics::ForModel(absl::string_view name, std::int64_t version) {
  return models_->Handle(name, version);
}

ModelMetrics& Metrics::ForNoModel() { return models_->no_model(); }

std::shared_ptr<IdentityMetrics> Metrics::ForIdentity(absl::string_view name) {
  return identities_->Handle(name);
}

LaneMetrics& Metrics::ForLane(absl::string_view device, absl::string_view lane) {
  MutexLock lock(mutex_);
  return lanes_[{std::string(device), std::string(lane)}];
}

void Metrics::SetDevice(absl::string_view device, absl::string_view description) {
  MutexLock lock(mutex_);
  devices_[std::string(device)] = std::string(description);
}

void Metrics::SetLimits(const MetricsLimits& limits) {
  inflight_limit_bytes_.Set(limits.inflight_bytes);
  queue_limit_requests_.Set(limits.queue_requests);
}

void Metrics::AddPayload(std::int64_t in_bytes, std::int64_t out_bytes) {
  if (in_bytes > 0) payload_bytes_.Add(0, in_bytes);
  if (out_bytes > 0) payload_bytes_.Add(1, out_bytes);
}

std::shared_ptr<void> Metrics::WatchPool(std::string pool, std::function<PoolUse()> read) {
  auto watch = std::make_shared<PoolWatch>(std::move(pool), std::move(read));
  MutexLock lock(mutex_);
  std::erase_if(watches_, [](const auto& old) { return old.expired(); });
  watches_.push_back(watch);
  // The caller's handle is not the watch itself, which a scrape may hold for a moment longer.
  PoolWatch* const raw = watch.get();
  return std::shared_ptr<void>(raw, [watch](void*) { watch->Stop(); });
}

void Metrics::WatchLostLogLines(std::function<std::int64_t()> read) {
  MutexLock lock(mutex_);
  lost_log_lines_ = std::move(read);
}

void Metrics::WatchSaturation(std::function<double()> read) {
  MutexLock lock(mutex_);
  saturation_ = std::move(read);
}

std::string Metrics::Scrape() {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, Collect());
  return std::move(out).str();
}

std::vector<prometheus::MetricFamily> Metrics::Collect() {
  FamilyList out;
  CollectServer(out);
  models_->Collect(out);
  identities_->Collect(out);
  return std::move(out).Take();
}

std::vector<prometheus::MetricFamily> Metrics::CollectServer() {
  FamilyList out;
  CollectServer(out);
  return std::move(out).Take();
}

Traffic Metrics::ReadTraffic() {
  Traffic traffic;
  traffic.models = models_->Read();
  traffic.inflight_bytes = std::max<std::int64_t>(inflight_bytes_.Sum(0), 0);
  for (const ConnectionMetrics& port : connections_) {
    port.AddRefusedRequests(traffic.refused_requests);
  }
  std::function<double()> saturation;
  {
    MutexLock lock(mutex_);
    saturation = saturation_;
    for (const auto& [name, lane] : lanes_) {
      traffic.lanes.push_back({name.first, name.second, lane.busy_seconds()});
    }
  }
  if (saturation) traffic.saturation = saturation();
  return traffic;
}

void Metrics::CollectServer(FamilyList& out) const {
  out.Add(families::kBuildInfo, {build_.version, build_.cuda}, 1);
  out.Add(families::kReady, {}, ready_.Get());
  // Bytes that leave one shard's count while the sum is taken can make it negative.
  out.Add(families::kInflightBytes, {},
          static_cast<double>(std::max<std::int64_t>(inflight_bytes_.Sum(0), 0)));
  out.Add(families::kInflightLimitBytes, {}, inflight_limit_bytes_.Get());
  out.Add(families::kQueueLimitRequests, {}, queue_limit_requests_.Get());
  out.Add(families::kPayloadBytes, {"in"}, static_cast<double>(payload_bytes_.Sum(0)));
  out.Add(families::kPayloadBytes, {"out"}, static_cast<double>(payload_bytes_.Sum(1)));
  for (const ConnectionMetrics& port : connections_) port.Collect(out);
  tls_.Collect(out);
  policy_.Collect(out);
  regions_.Collect(out);
  repository_.Collect(out);
  CollectLanes(out);
  CollectPools(out);
  CollectWatches(out);
}

void Metrics::CollectLanes(FamilyList& out) const {
  struct Device {
    int working = 0;
    int retired = 0;
    std::int64_t in_bytes = 0;
    std::int64_t out_bytes = 0;
  };
  MutexLock lock(mutex_);
  for (const auto& [device, description] : devices_) {
    out.Add(families::kDeviceInfo, {device, description}, 1);
  }
  std::map<absl::string_view, Device> devices;
  for (const auto& [name, lane] : lanes_) {
    out.Add(families::kLaneBusy, {name.first, name.second}, lane.busy_seconds());
    Device& device = devices[name.first];
    ++(lane.retired() ? device.retired : device.working);
    device.in_bytes += lane.copied_in_bytes();
    device.out_bytes += lane.copied_out_bytes();
  }
  for (const auto& [name, device] : devices) {
    out.Add(families::kLanes, {name, "working"}, device.working);
    out.Add(families::kLanes, {name, "retired"}, device.retired);
    out.Add(families::kDeviceCopied, {name, "in"}, static_cast<double>(device.in_bytes));
    out.Add(families::kDeviceCopied, {name, "out"}, static_cast<double>(device.out_bytes));
  }
}

// Pools of one name, such as one per lane, are one series.
void Metrics::CollectPools(FamilyList& out) const {
  std::vector<std::shared_ptr<PoolWatch>> watches;
  {
    MutexLock lock(mutex_);
    for (const auto& watch : watches_) {
      if (auto alive = watch.lock()) watches.push_back(std::move(alive));
    }
  }
  std::map<std::string, PoolUse> pools;
  for (const auto& watch : watches) {
    const PoolUse use = watch->Read();
    PoolUse& sum = pools[watch->pool()];
    sum.used_bytes += use.used_bytes;
    sum.free_bytes += use.free_bytes;
  }
  for (const auto& [pool, use] : pools) {
    out.Add(families::kPoolBytes, {pool, "used"}, static_cast<double>(use.used_bytes));
    out.Add(families::kPoolBytes, {pool, "free"}, static_cast<double>(use.free_bytes));
  }
}

void Metrics::CollectWatches(FamilyList& out) const {
  std::function<std::int64_t()> lost_log_lines;
  std::function<double()> saturation;
  {
    MutexLock lock(mutex_);
    lost_log_lines = lost_log_lines_;
    saturation = saturation_;
  }
  if (lost_log_lines) out.Add(families::kLostLogLines, {}, static_cast<double>(lost_log_lines()));
  if (saturation) out.Add(families::kSaturation, {}, saturation());
}

}  // namespace normd

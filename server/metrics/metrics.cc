#include "server/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/families.h"
#include "server/metrics/identity_series.h"
#include "server/metrics/repository_series.h"
#include "server/metrics/series_set.h"
#include "server/metrics/sharded_cells.h"

namespace normd {
namespace {

class LaneSeries final : public LaneMetrics {
 public:
  void AddBusy(Duration duration) override {
    busy_ns_.Add(0, std::max<std::int64_t>(duration.count(), 0));
  }
  void AddCopied(std::int64_t in_bytes, std::int64_t out_bytes) override {
    copied_bytes_.Add(0, in_bytes);
    copied_bytes_.Add(1, out_bytes);
  }
  // Relaxed: nothing else is published with it.
  void RecordRetired() override { retired_.store(true, std::memory_order_relaxed); }

  double busy_seconds() const { return static_cast<double>(busy_ns_.Sum(0)) / 1e9; }
  std::int64_t copied_in_bytes() const { return copied_bytes_.Sum(0); }
  std::int64_t copied_out_bytes() const { return copied_bytes_.Sum(1); }
  bool retired() const { return retired_.load(std::memory_order_relaxed); }

 private:
  ShardedCells busy_ns_{1};
  ShardedCells copied_bytes_{2};  // In, out.
  std::atomic<bool> retired_{false};
};

constexpr absl::string_view kRefusalNames[] = {"connections", "peer_connections", "descriptors"};
static_assert(std::size(kRefusalNames) == kConnectionRefusals);
constexpr absl::string_view kEndingNames[] = {"handshake_timeout", "no_http2", "no_tls",
                                              "tls_version",       "oversize", "message_timeout",
                                              "transport_bytes"};
static_assert(std::size(kEndingNames) == kConnectionEndings);
constexpr absl::string_view kPortNames[] = {"grpc", "http"};
static_assert(std::size(kPortNames) == kRequestPorts);

// Relaxed: nothing else is published with these.
class ConnectionSeries final : public ConnectionMetrics {
 public:
  explicit ConnectionSeries(RequestPort port) : port_(port) {}

  void RecordAccepted() override { Count(accepted_); }
  void RecordRefused(ConnectionRefusal reason) override {
    Count(refused_[static_cast<std::size_t>(reason)]);
  }
  void RecordEnded(ConnectionEnding reason) override {
    Count(ended_[static_cast<std::size_t>(reason)]);
  }
  void SetOpen(std::int64_t connections) override { Set(open_, connections); }
  void SetLimit(std::int64_t connections) override { Set(limit_, connections); }
  void SetUndelivered(std::int64_t bytes) override { Set(undelivered_bytes_, bytes); }
  void RecordRefusedRequest(int status) override {
    for (std::size_t i = 0; i < kRefusalStatuses.size(); ++i) {
      if (kRefusalStatuses[i] == status) Count(refused_requests_[i]);
    }
  }
  void Show() { shown_.store(true, std::memory_order_relaxed); }

  void Collect(FamilyList& out) const {
    if (!shown_.load(std::memory_order_relaxed)) return;
    const absl::string_view port = kPortNames[static_cast<std::size_t>(port_)];
    out.Add(Family::kConnections, {port}, Get(open_));
    out.Add(Family::kConnectionsLimit, {port}, Get(limit_));
    out.Add(Family::kConnectionsAccepted, {port}, Get(accepted_));
    for (std::size_t i = 0; i < refused_.size(); ++i) {
      out.Add(Family::kConnectionsRefused, {port, kRefusalNames[i]}, Get(refused_[i]));
    }
    for (std::size_t i = 0; i < ended_.size(); ++i) {
      out.Add(Family::kConnectionsEnded, {port, kEndingNames[i]}, Get(ended_[i]));
    }
    if (port_ == RequestPort::kGrpc) {
      out.Add(Family::kUndeliveredBytes, {}, Get(undelivered_bytes_));
      return;
    }
    for (std::size_t i = 0; i < refused_requests_.size(); ++i) {
      out.Add(Family::kRequestsRefused, {std::to_string(kRefusalStatuses[i])},
              Get(refused_requests_[i]));
    }
  }

 private:
  using Number = std::atomic<std::int64_t>;
  static void Count(Number& number) { number.fetch_add(1, std::memory_order_relaxed); }
  static void Set(Number& number, std::int64_t value) {
    number.store(value, std::memory_order_relaxed);
  }
  static double Get(const Number& number) {
    return static_cast<double>(number.load(std::memory_order_relaxed));
  }

  const RequestPort port_;
  std::atomic<bool> shown_{false};
  Number accepted_{0};
  std::array<Number, kConnectionRefusals> refused_{};
  std::array<Number, kConnectionEndings> ended_{};
  Number open_{0};
  Number limit_{0};
  Number undelivered_bytes_{0};
  std::array<Number, kRefusalStatuses.size()> refused_requests_{};
};

// Relaxed: nothing else is published with these.
class TlsSeries final : public TlsMetrics {
 public:
  void SetNotAfter(std::int64_t seconds) override {
    not_after_.store(seconds, std::memory_order_relaxed);
  }
  void RecordReload(bool taken) override {
    (taken ? taken_ : refused_).fetch_add(1, std::memory_order_relaxed);
  }

  void Collect(FamilyList& out) const {
    const std::int64_t not_after = not_after_.load(std::memory_order_relaxed);
    if (not_after == 0) return;
    const auto get = [](const std::atomic<std::int64_t>& number) {
      return static_cast<double>(number.load(std::memory_order_relaxed));
    };
    out.Add(Family::kCertificateNotAfter, {}, static_cast<double>(not_after));
    out.Add(Family::kCertificateReloads, {"taken"}, get(taken_));
    out.Add(Family::kCertificateReloads, {"refused"}, get(refused_));
  }

 private:
  std::atomic<std::int64_t> not_after_{0};
  std::atomic<std::int64_t> taken_{0};
  std::atomic<std::int64_t> refused_{0};
};

// Relaxed: nothing else is published with these.
class PolicySeries final : public PolicyMetrics {
 public:
  void RecordReload(bool taken) override {
    (taken ? taken_ : refused_).fetch_add(1, std::memory_order_relaxed);
  }
  void Show() { shown_.store(true, std::memory_order_relaxed); }

  void Collect(FamilyList& out) const {
    if (!shown_.load(std::memory_order_relaxed)) return;
    const auto add = [&out](absl::string_view result, const std::atomic<std::int64_t>& number) {
      out.Add(Family::kPolicyReloads, {result},
              static_cast<double>(number.load(std::memory_order_relaxed)));
    };
    add("taken", taken_);
    add("refused", refused_);
  }

 private:
  std::atomic<bool> shown_{false};
  std::atomic<std::int64_t> taken_{0};
  std::atomic<std::int64_t> refused_{0};
};

constexpr absl::string_view kRegionPlaneNames[] = {"named", "descriptor", "device"};
static_assert(std::size(kRegionPlaneNames) == kRegionPlanes);
constexpr absl::string_view kRegionRefusalNames[] = {"off", "name", "file", "device", "limit"};
static_assert(std::size(kRegionRefusalNames) == kRegionRefusals);
constexpr absl::string_view kHandoverEndingNames[] = {"no_region", "user"};
static_assert(std::size(kHandoverEndingNames) == kHandoverEndings);
constexpr absl::string_view kPageLockRefusalNames[] = {"limit", "driver", "late"};
static_assert(std::size(kPageLockRefusalNames) == kPageLockRefusals);
constexpr absl::string_view kRegionMemoryNames[] = {"host", "device"};
static_assert(std::size(kRegionMemoryNames) == kRegionMemories);

// Relaxed: nothing else is published with these. The bytes are counted for each request and
// sharded, the others are rare.
class RegionSeries final : public RegionMetrics {
 public:
  void AddMapped(RegionPlane kind, std::int64_t regions, std::int64_t bytes) override {
    const auto index = static_cast<std::size_t>(kind);
    regions_[index].fetch_add(regions, std::memory_order_relaxed);
    bytes_[index].fetch_add(bytes, std::memory_order_relaxed);
  }
  void RecordRefused(RegionRefusal reason) override {
    refused_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  void AddConnections(std::int64_t connections) override {
    connections_.fetch_add(connections, std::memory_order_relaxed);
  }
  void RecordConnectionEnded(HandoverEnding reason) override {
    connections_ended_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  void AddLocked(std::int64_t bytes) override {
    locked_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void RecordNotLocked(PageLockRefusal reason) override {
    not_locked_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  void RecordBroken() override { broken_.fetch_add(1, std::memory_order_relaxed); }
  void AddTensors(RegionMemory memory, std::int64_t in_bytes, std::int64_t out_bytes) override {
    const std::size_t first = 2 * static_cast<std::size_t>(memory);
    tensor_bytes_.Add(first, in_bytes);
    tensor_bytes_.Add(first + 1, out_bytes);
  }

  void Collect(FamilyList& out) const {
    for (std::size_t i = 0; i < kRegionPlanes; ++i) {
      out.Add(Family::kSharedRegions, {kRegionPlaneNames[i]}, Get(regions_[i]));
      out.Add(Family::kSharedRegionBytes, {kRegionPlaneNames[i]}, Get(bytes_[i]));
    }
    for (std::size_t i = 0; i < kRegionRefusals; ++i) {
      out.Add(Family::kSharedRegionsRefused, {kRegionRefusalNames[i]}, Get(refused_[i]));
    }
    out.Add(Family::kSharedConnections, {}, Get(connections_));
    for (std::size_t i = 0; i < kHandoverEndings; ++i) {
      out.Add(Family::kSharedConnectionsEnded, {kHandoverEndingNames[i]},
              Get(connections_ended_[i]));
    }
    out.Add(Family::kSharedLockedBytes, {}, Get(locked_bytes_));
    for (std::size_t i = 0; i < kPageLockRefusals; ++i) {
      out.Add(Family::kSharedRegionsNotLocked, {kPageLockRefusalNames[i]}, Get(not_locked_[i]));
    }
    out.Add(Family::kSharedRegionsBroken, {}, Get(broken_));
    for (std::size_t i = 0; i < kRegionMemories; ++i) {
      const absl::string_view memory = kRegionMemoryNames[i];
      out.Add(Family::kSharedTensorBytes, {"in", memory},
              static_cast<double>(tensor_bytes_.Sum(2 * i)));
      out.Add(Family::kSharedTensorBytes, {"out", memory},
              static_cast<double>(tensor_bytes_.Sum(2 * i + 1)));
    }
  }

 private:
  using Number = std::atomic<std::int64_t>;
  static double Get(const Number& number) {
    return static_cast<double>(number.load(std::memory_order_relaxed));
  }

  std::array<Number, kRegionPlanes> regions_{};
  std::array<Number, kRegionPlanes> bytes_{};
  std::array<Number, kRegionRefusals> refused_{};
  Number connections_{0};
  std::array<Number, kHandoverEndings> connections_ended_{};
  Number locked_bytes_{0};
  std::array<Number, kPageLockRefusals> not_locked_{};
  Number broken_{0};
  ShardedCells tensor_bytes_{2 * kRegionMemories};  // In and out, for each memory.
};

// A pool that is read at each scrape, until Stop. The mutex is held while `read` runs, unlike
// elsewhere in the server, because Stop has to wait for a read in progress: the pool may be gone
// once it returns.
class PoolWatch {
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

class MetricsImpl final : public Metrics {
 public:
  MetricsImpl(BuildInfo build, const MetricsOptions& options)
      : build_(std::move(build)), models_(SeriesSet::Create(options.max_model_series)) {}

  std::shared_ptr<ModelMetrics> ForModel(absl::string_view name, std::int64_t version) override {
    return models_->Handle(name, version);
  }
  ModelMetrics& ForNoModel() override { return models_->no_model(); }

  std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view name) override {
    return identities_->Handle(name);
  }
  ConnectionMetrics& ForConnections(RequestPort port) override {
    ConnectionSeries& series = connections_[static_cast<std::size_t>(port)];
    series.Show();
    return series;
  }
  TlsMetrics& ForTls() override { return tls_; }
  PolicyMetrics& ForPolicy() override {
    policy_.Show();
    return policy_;
  }
  RegionMetrics& ForRegions() override { return regions_; }
  RepositoryMetrics& ForRepository() override { return repository_; }

  LaneMetrics& ForLane(absl::string_view device, absl::string_view lane) override {
    MutexLock lock(mutex_);
    return lanes_[{std::string(device), std::string(lane)}];
  }

  void SetDevice(absl::string_view device, absl::string_view description) override {
    MutexLock lock(mutex_);
    devices_[std::string(device)] = std::string(description);
  }

  // Relaxed, as with SetReady.
  void SetLimits(const MetricsLimits& limits) override {
    inflight_limit_bytes_.store(limits.inflight_bytes, std::memory_order_relaxed);
    queue_limit_requests_.store(limits.queue_requests, std::memory_order_relaxed);
  }

  void AddInflightBytes(std::int64_t bytes) override { inflight_bytes_.Add(0, bytes); }

  void AddPayload(std::int64_t in_bytes, std::int64_t out_bytes) override {
    if (in_bytes > 0) payload_bytes_.Add(0, in_bytes);
    if (out_bytes > 0) payload_bytes_.Add(1, out_bytes);
  }

  // Relaxed: nothing else is published with it.
  void SetReady(bool ready) override { ready_.store(ready, std::memory_order_relaxed); }

  std::shared_ptr<void> WatchPool(std::string pool, std::function<PoolUse()> read) override {
    auto watch = std::make_shared<PoolWatch>(std::move(pool), std::move(read));
    MutexLock lock(mutex_);
    std::erase_if(watches_, [](const auto& old) { return old.expired(); });
    watches_.push_back(watch);
    // The caller's handle is not the watch itself, which a scrape may hold for a moment longer.
    PoolWatch* const raw = watch.get();
    return std::shared_ptr<void>(raw, [watch](void*) { watch->Stop(); });
  }

  void WatchLostLogLines(std::function<std::int64_t()> read) override {
    MutexLock lock(mutex_);
    lost_log_lines_ = std::move(read);
  }

  void WatchSaturation(std::function<double()> read) override {
    MutexLock lock(mutex_);
    saturation_ = std::move(read);
  }

  std::string Scrape() override {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, Collect());
    return std::move(out).str();
  }

  std::vector<prometheus::MetricFamily> Collect() override {
    FamilyList out;
    CollectServer(out);
    models_->Collect(out);
    identities_->Collect(out);
    return std::move(out).Take();
  }

  std::vector<prometheus::MetricFamily> CollectServer() override {
    FamilyList out;
    CollectServer(out);
    return std::move(out).Take();
  }

  Traffic ReadTraffic() override {
    Traffic traffic;
    traffic.models = models_->Read();
    traffic.inflight_bytes = std::max<std::int64_t>(inflight_bytes_.Sum(0), 0);
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

 private:
  void CollectServer(FamilyList& out) const {
    out.Add(Family::kBuildInfo, {build_.version, build_.cuda}, 1);
    out.Add(Family::kReady, {}, ready_.load(std::memory_order_relaxed) ? 1 : 0);
    // Bytes that leave one shard's count while the sum is taken can make it negative.
    out.Add(Family::kInflightBytes, {},
            static_cast<double>(std::max<std::int64_t>(inflight_bytes_.Sum(0), 0)));
    out.Add(Family::kInflightLimitBytes, {},
            static_cast<double>(inflight_limit_bytes_.load(std::memory_order_relaxed)));
    out.Add(Family::kQueueLimitRequests, {},
            static_cast<double>(queue_limit_requests_.load(std::memory_order_relaxed)));
    out.Add(Family::kPayloadBytes, {"in"}, static_cast<double>(payload_bytes_.Sum(0)));
    out.Add(Family::kPayloadBytes, {"out"}, static_cast<double>(payload_bytes_.Sum(1)));
    for (const ConnectionSeries& port : connections_) port.Collect(out);
    tls_.Collect(out);
    policy_.Collect(out);
    regions_.Collect(out);
    repository_.Collect(out);
    CollectLanes(out);
    CollectPools(out);
    CollectWatches(out);
  }

  void CollectLanes(FamilyList& out) const {
    struct Device {
      int working = 0;
      int retired = 0;
      std::int64_t in_bytes = 0;
      std::int64_t out_bytes = 0;
    };
    MutexLock lock(mutex_);
    for (const auto& [device, description] : devices_) {
      out.Add(Family::kDeviceInfo, {device, description}, 1);
    }
    std::map<absl::string_view, Device> devices;
    for (const auto& [name, lane] : lanes_) {
      out.Add(Family::kLaneBusy, {name.first, name.second}, lane.busy_seconds());
      Device& device = devices[name.first];
      ++(lane.retired() ? device.retired : device.working);
      device.in_bytes += lane.copied_in_bytes();
      device.out_bytes += lane.copied_out_bytes();
    }
    for (const auto& [name, device] : devices) {
      out.Add(Family::kLanes, {name, "working"}, device.working);
      out.Add(Family::kLanes, {name, "retired"}, device.retired);
      out.Add(Family::kDeviceCopied, {name, "in"}, static_cast<double>(device.in_bytes));
      out.Add(Family::kDeviceCopied, {name, "out"}, static_cast<double>(device.out_bytes));
    }
  }

  // Pools of one name, such as one per lane, are one series.
  void CollectPools(FamilyList& out) const {
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
      out.Add(Family::kPoolBytes, {pool, "used"}, static_cast<double>(use.used_bytes));
      out.Add(Family::kPoolBytes, {pool, "free"}, static_cast<double>(use.free_bytes));
    }
  }

  void CollectWatches(FamilyList& out) const {
    std::function<std::int64_t()> lost_log_lines;
    std::function<double()> saturation;
    {
      MutexLock lock(mutex_);
      lost_log_lines = lost_log_lines_;
      saturation = saturation_;
    }
    if (lost_log_lines) out.Add(Family::kLostLogLines, {}, static_cast<double>(lost_log_lines()));
    if (saturation) out.Add(Family::kSaturation, {}, saturation());
  }

  const BuildInfo build_;
  const std::shared_ptr<SeriesSet> models_;  // shared: with the handles of models.
  const std::shared_ptr<IdentitySeriesSet> identities_ = IdentitySeriesSet::Create();  // Likewise.
  ShardedCells inflight_bytes_{1};
  ShardedCells payload_bytes_{2};  // In, out.
  std::array<ConnectionSeries, kRequestPorts> connections_{ConnectionSeries(RequestPort::kGrpc),
                                                           ConnectionSeries(RequestPort::kHttp)};
  TlsSeries tls_;
  PolicySeries policy_;
  RegionSeries regions_;
  RepositorySeries repository_;
  std::atomic<bool> ready_{false};
  std::atomic<std::int64_t> inflight_limit_bytes_{0};
  std::atomic<std::int64_t> queue_limit_requests_{0};

  mutable Mutex mutex_;
  // Entries are never removed: handles point into them.
  std::map<std::pair<std::string, std::string>, LaneSeries> lanes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> devices_ ABSL_GUARDED_BY(mutex_);  // Their descriptions.
  std::function<std::int64_t()> lost_log_lines_ ABSL_GUARDED_BY(mutex_);
  std::function<double()> saturation_ ABSL_GUARDED_BY(mutex_);
  // weak: the handle that WatchPool gave owns the watch.
  std::vector<std::weak_ptr<PoolWatch>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::string_view ConnectionEndingName(ConnectionEnding why) {
  return kEndingNames[static_cast<std::size_t>(why)];
}

std::unique_ptr<Metrics> CreateMetrics(const BuildInfo& build, const MetricsOptions& options) {
  return std::make_unique<MetricsImpl>(build, options);
}

}  // namespace normd

#include "server/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/families.h"
#include "server/metrics/identity_series.h"
#include "server/metrics/rare_counts.h"
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
  void RecordRetired() override { retired_.Set(1); }

  double busy_seconds() const { return static_cast<double>(busy_ns_.Sum(0)) / 1e9; }
  std::int64_t copied_in_bytes() const { return copied_bytes_.Sum(0); }
  std::int64_t copied_out_bytes() const { return copied_bytes_.Sum(1); }
  bool retired() const { return retired_.Get() != 0; }

 private:
  ShardedCells busy_ns_{1};
  ShardedCells copied_bytes_{2};  // In, out.
  RareCount retired_;
};

constexpr absl::string_view kRefusalNames[] = {"connections", "peer_connections", "descriptors"};
constexpr absl::string_view kEndingNames[] = {"handshake_timeout", "no_http2", "no_tls",
                                              "tls_version",       "oversize", "message_timeout",
                                              "transport_bytes"};
static_assert(std::size(kRefusalNames) == kConnectionRefusals);
static_assert(std::size(kEndingNames) == kConnectionEndings);
constexpr absl::string_view kPortNames[] = {"grpc", "http"};
static_assert(std::size(kPortNames) == kRequestPorts);

class ConnectionSeries final : public ConnectionMetrics {
 public:
  explicit ConnectionSeries(RequestPort port) : port_(port) {}

  void RecordAccepted() override { accepted_.Add(1); }
  void RecordRefused(ConnectionRefusal reason) override { refused_.Add(reason); }
  void RecordEnded(ConnectionEnding reason) override { ended_.Add(reason); }
  void SetOpen(std::int64_t connections) override { open_.Set(connections); }
  void SetLimit(std::int64_t connections) override { limit_.Set(connections); }
  void SetUndelivered(std::int64_t bytes) override { undelivered_bytes_.Set(bytes); }
  void RecordRefusedRequest(int status) override {
    refused_requests_.Add(std::find(kRefusalStatuses.begin(), kRefusalStatuses.end(), status) -
                          kRefusalStatuses.begin());
  }
  void AddRefusedRequests(RequestRefusalCounts& counts) const {
    for (std::size_t i = 0; i < kRequestRefusals; ++i) {
      counts[i] += static_cast<std::int64_t>(refused_requests_.Get(i));
    }
  }
  void Show() { shown_.Set(1); }

  void Collect(FamilyList& out) const {
    if (shown_.Get() == 0) return;
    const absl::string_view port = kPortNames[static_cast<std::size_t>(port_)];
    out.Add(families::kConnections, {port}, open_.Get());
    out.Add(families::kConnectionsLimit, {port}, limit_.Get());
    out.Add(families::kConnectionsAccepted, {port}, accepted_.Get());
    for (std::size_t i = 0; i < std::size(kRefusalNames); ++i) {
      out.Add(families::kConnectionsRefused, {port, kRefusalNames[i]}, refused_.Get(i));
    }
    for (std::size_t i = 0; i < std::size(kEndingNames); ++i) {
      out.Add(families::kConnectionsEnded, {port, kEndingNames[i]}, ended_.Get(i));
    }
    if (port_ == RequestPort::kGrpc) {
      out.Add(families::kUndeliveredBytes, {}, undelivered_bytes_.Get());
      return;
    }
    for (std::size_t i = 0; i < kRequestRefusals; ++i) {
      out.Add(families::kRequestsRefused, {RefusalStatusName(i)}, refused_requests_.Get(i));
    }
  }

 private:
  const RequestPort port_;
  RareCount shown_;
  RareCount accepted_;
  RareCounts<kConnectionRefusals> refused_;
  RareCounts<kConnectionEndings> ended_;
  RareCount open_;
  RareCount limit_;
  RareCount undelivered_bytes_;
  RareCounts<kRequestRefusals> refused_requests_;
};

// By whether new files were taken.
constexpr absl::string_view kReloadNames[] = {"refused", "taken"};

class TlsSeries final : public TlsMetrics {
 public:
  void SetNotAfter(std::int64_t seconds) override { not_after_.Set(seconds); }
  void RecordReload(bool taken) override { reloads_.Add(taken); }

  void Collect(FamilyList& out) const {
    const double not_after = not_after_.Get();
    if (not_after == 0) return;
    out.Add(families::kCertificateNotAfter, {}, not_after);
    reloads_.Collect(families::kCertificateReloads, kReloadNames, out);
  }

 private:
  RareCount not_after_;
  RareCounts<2> reloads_;
};

class PolicySeries final : public PolicyMetrics {
 public:
  void RecordReload(bool taken) override { reloads_.Add(taken); }
  void Show() { shown_.Set(1); }

  void Collect(FamilyList& out) const {
    if (shown_.Get() != 0) reloads_.Collect(families::kPolicyReloads, kReloadNames, out);
  }

 private:
  RareCount shown_;
  RareCounts<2> reloads_;
};

class RepositorySeries final : public RepositoryMetrics {
 public:
  void SetVersions(const VersionCounts& counts) override {
    loaded_.Set(counts.loaded);
    failed_.Set(counts.failed);
  }
  void RecordLoadFailure() override { failures_.Add(1); }
  void RecordPoll(bool complete) override { polls_.Add(complete); }

  void Collect(FamilyList& out) const {
    out.Add(families::kModelVersions, {"loaded"}, loaded_.Get());
    out.Add(families::kModelVersions, {"failed"}, failed_.Get());
    out.Add(families::kModelLoadFailures, {}, failures_.Get());
    polls_.Collect(families::kRepositoryPolls, {"incomplete", "complete"}, out);
  }

 private:
  RareCount loaded_;
  RareCount failed_;
  RareCount failures_;
  RareCounts<2> polls_;
};

constexpr absl::string_view kRegionPlaneNames[] = {"named", "descriptor", "device"};
constexpr absl::string_view kRegionMemoryNames[] = {"host", "device"};

// The bytes are counted for each request and sharded, the others are rare.
class RegionSeries final : public RegionMetrics {
 public:
  void AddMapped(RegionPlane kind, std::int64_t regions, std::int64_t bytes) override {
    regions_.Add(kind, regions);
    bytes_.Add(kind, bytes);
  }
  void RecordRefused(RegionRefusal reason) override { refused_.Add(reason); }
  void AddConnections(std::int64_t connections) override { connections_.Add(connections); }
  void RecordConnectionEnded(HandoverEnding reason) override { connections_ended_.Add(reason); }
  void AddLocked(std::int64_t bytes) override { locked_bytes_.Add(bytes); }
  void RecordNotLocked(PageLockRefusal reason) override { not_locked_.Add(reason); }
  void RecordBroken() override { broken_.Add(1); }
  void AddTensors(RegionMemory memory, std::int64_t in_bytes, std::int64_t out_bytes) override {
    const std::size_t first = 2 * static_cast<std::size_t>(memory);
    tensor_bytes_.Add(first, in_bytes);
    tensor_bytes_.Add(first + 1, out_bytes);
  }

  void Collect(FamilyList& out) const {
    regions_.Collect(families::kSharedRegions, kRegionPlaneNames, out);
    bytes_.Collect(families::kSharedRegionBytes, kRegionPlaneNames, out);
    refused_.Collect(families::kSharedRegionsRefused, {"off", "name", "file", "device", "limit"},
                     out);
    out.Add(families::kSharedConnections, {}, connections_.Get());
    connections_ended_.Collect(families::kSharedConnectionsEnded, {"no_region", "user"}, out);
    out.Add(families::kSharedLockedBytes, {}, locked_bytes_.Get());
    not_locked_.Collect(families::kSharedRegionsNotLocked, {"limit", "driver", "late"}, out);
    out.Add(families::kSharedRegionsBroken, {}, broken_.Get());
    for (std::size_t i = 0; i < kRegionMemories; ++i) {
      const absl::string_view memory = kRegionMemoryNames[i];
      out.Add(families::kSharedTensorBytes, {"in", memory},
              static_cast<double>(tensor_bytes_.Sum(2 * i)));
      out.Add(families::kSharedTensorBytes, {"out", memory},
              static_cast<double>(tensor_bytes_.Sum(2 * i + 1)));
    }
  }

 private:
  RareCounts<kRegionPlanes> regions_;
  RareCounts<kRegionPlanes> bytes_;
  RareCounts<kRegionRefusals> refused_;
  RareCount connections_;
  RareCounts<kHandoverEndings> connections_ended_;
  RareCount locked_bytes_;
  RareCounts<kPageLockRefusals> not_locked_;
  RareCount broken_;
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

  void SetLimits(const MetricsLimits& limits) override {
    inflight_limit_bytes_.Set(limits.inflight_bytes);
    queue_limit_requests_.Set(limits.queue_requests);
  }

  void AddInflightBytes(std::int64_t bytes) override { inflight_bytes_.Add(0, bytes); }

  void AddPayload(std::int64_t in_bytes, std::int64_t out_bytes) override {
    if (in_bytes > 0) payload_bytes_.Add(0, in_bytes);
    if (out_bytes > 0) payload_bytes_.Add(1, out_bytes);
  }

  void SetReady(bool ready) override { ready_.Set(ready ? 1 : 0); }

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
    for (const ConnectionSeries& port : connections_) {
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

 private:
  void CollectServer(FamilyList& out) const {
    out.Add(families::kBuildInfo, {build_.version, build_.cuda}, 1);
    out.Add(families::kReady, {}, ready_.Get());
    // Bytes that leave one shard's count while the sum is taken can make it negative.
    out.Add(families::kInflightBytes, {},
            static_cast<double>(std::max<std::int64_t>(inflight_bytes_.Sum(0), 0)));
    out.Add(families::kInflightLimitBytes, {}, inflight_limit_bytes_.Get());
    out.Add(families::kQueueLimitRequests, {}, queue_limit_requests_.Get());
    out.Add(families::kPayloadBytes, {"in"}, static_cast<double>(payload_bytes_.Sum(0)));
    out.Add(families::kPayloadBytes, {"out"}, static_cast<double>(payload_bytes_.Sum(1)));
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
      out.Add(families::kPoolBytes, {pool, "used"}, static_cast<double>(use.used_bytes));
      out.Add(families::kPoolBytes, {pool, "free"}, static_cast<double>(use.free_bytes));
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
    if (lost_log_lines) out.Add(families::kLostLogLines, {}, static_cast<double>(lost_log_lines()));
    if (saturation) out.Add(families::kSaturation, {}, saturation());
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
  RareCount ready_;
  RareCount inflight_limit_bytes_;
  RareCount queue_limit_requests_;

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

std::string RefusalStatusName(std::size_t refusal) {
  return refusal < kRefusalStatuses.size() ? std::to_string(kRefusalStatuses[refusal]) : "other";
}

std::unique_ptr<Metrics> CreateMetrics(const BuildInfo& build, const MetricsOptions& options) {
  return std::make_unique<MetricsImpl>(build, options);
}

}  // namespace normd

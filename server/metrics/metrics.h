// Everything the server measures. Only this folder knows metric names, labels and buckets; the
// others hold typed handles, which they look up once (at load, at start) and not per request.
//
// All recording functions are thread-safe, never block and take no lock: counters and histograms
// are sharded over cache lines and summed at the scrape. Only the first recording in a series
// allocates.

#ifndef NORMD_SERVER_METRICS_METRICS_H_
#define NORMD_SERVER_METRICS_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/metrics/handles.h"
#include "server/metrics/model_series.h"
#include "server/metrics/sharded_cells.h"
#include "server/metrics/traffic.h"

namespace normd {

class IdentitySeriesSet;
class SeriesSet;

// Bytes of a pool by state, read at the scrape.
struct PoolUse {
  std::int64_t used_bytes = 0;
  std::int64_t free_bytes = 0;
};

// What is refused above: the ceilings beside the gauges.
struct MetricsLimits {
  std::int64_t inflight_bytes = 0;
  std::int64_t queue_requests = 0;  // Per model version.
};

struct BuildInfo {
  std::string version;
  std::string cuda;  // Empty without it.
};

struct MetricsOptions {
  // Loaded model versions that have series of their own, some 20 KB of text and 40 KB of memory
  // each once they are asked; more are counted together under model="_other".
  std::int64_t max_model_series = 1000;
};

// Owns every series. Thread-safe. Outlives all handles that it gave, but for those of models.
class Metrics {
 public:
  explicit Metrics(BuildInfo build = {}, const MetricsOptions& options = {});
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The series of a loaded model version, for as long as it is loaded and its calls are in flight:
  // shared, because the last of them to go ends the series, two scrapes later. A version that is
  // loaded again before goes on where it was. Beyond MetricsOptions::max_model_series, the series
  // that all further versions share. Call it at load, never with a name that a client sent.
  std::shared_ptr<ModelMetrics> ForModel(absl::string_view name, std::int64_t version);
  // Requests that name no loaded model, and methods that concern none: model="", version="".
  ModelMetrics& ForNoModel();
  // The series of an identity, as ForModel's, "" for calls that are nobody's; beyond
  // kMaxIdentitySeries those that all further ones share. Call it when a policy is taken.
  std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view name);
  // Its series are there from the first call on.
  ConnectionMetrics& ForConnections(RequestPort port) {
    ConnectionMetrics& series = connections_[static_cast<std::size_t>(port)];
    series.Show();
    return series;
  }
  TlsMetrics& ForTls() { return tls_; }
  // Its series are there from the first call on.
  PolicyMetrics& ForPolicy() {
    policy_.Show();
    return policy_;
  }
  RegionMetrics& ForRegions() { return regions_; }
  RepositoryMetrics& ForRepository() { return repository_; }
  // A lane is working from here on.
  LaneMetrics& ForLane(absl::string_view device, absl::string_view lane);
  // What the device is, for people; the last call for a device counts.
  void SetDevice(absl::string_view device, absl::string_view description);
  void SetLimits(const MetricsLimits& limits);

  // Negative when they leave.
  void AddInflightBytes(std::int64_t bytes) { inflight_bytes_.Add(0, bytes); }
  void AddPayload(std::int64_t in_bytes, std::int64_t out_bytes);
  void SetReady(bool ready) { ready_.Set(ready ? 1 : 0); }
  // Calls `read` at each scrape, from the scraper's thread, until the returned handle is destroyed,
  // which waits for a call in progress. Pools of one name are added up. `read` must not block.
  std::shared_ptr<void> WatchPool(std::string pool, std::function<PoolUse()> read);
  // Calls `read` at each scrape, for as long as this lives: the log lines that were lost so far.
  void WatchLostLogLines(std::function<std::int64_t()> read);

  // The same for the share of time in which calls had to wait: see Saturation.
  void WatchSaturation(std::function<double()> read);

  // The whole exposition in Prometheus' text format, without the process's own series. Counts as a
  // scrape for the series of models that are gone.
  std::string Scrape();
  // The same as a list, for this folder's Exposer.
  std::vector<prometheus::MetricFamily> Collect();
  // Those that are no model's and no identity's; does not count as a scrape.
  std::vector<prometheus::MetricFamily> CollectServer();
  // The calls of all models and the time of all lanes; does not count as a scrape either.
  Traffic ReadTraffic();

 private:
  class PoolWatch;

  void CollectServer(FamilyList& out) const;
  void CollectLanes(FamilyList& out) const;
  void CollectPools(FamilyList& out) const;
  void CollectWatches(FamilyList& out) const;

  const BuildInfo build_;
  const std::shared_ptr<SeriesSet> models_;              // shared: with the handles of models.
  const std::shared_ptr<IdentitySeriesSet> identities_;  // Likewise.
  ShardedCells inflight_bytes_{1};
  ShardedCells payload_bytes_{2};  // In, out.
  std::array<ConnectionMetrics, kRequestPorts> connections_{ConnectionMetrics(RequestPort::kGrpc),
                                                            ConnectionMetrics(RequestPort::kHttp)};
  TlsMetrics tls_;
  PolicyMetrics policy_;
  RegionMetrics regions_;
  RepositoryMetrics repository_;
  RareCount ready_;
  RareCount inflight_limit_bytes_;
  RareCount queue_limit_requests_;

  mutable Mutex mutex_;
  // Entries are never removed: handles point into them.
  std::map<std::pair<std::string, std::string>, LaneMetrics> lanes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> devices_ ABSL_GUARDED_BY(mutex_);  // Their descriptions.
  std::function<std::int64_t()> lost_log_lines_ ABSL_GUARDED_BY(mutex_);
  std::function<double()> saturation_ ABSL_GUARDED_BY(mutex_);
  // weak: the handle that WatchPool gave owns the watch.
  std::vector<std::weak_ptr<PoolWatch>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_METRICS_H_

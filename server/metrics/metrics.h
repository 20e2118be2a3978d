// Everything the server measures. Only this folder knows metric names, labels and buckets; the
// others hold typed handles, which they look up once (at load, at start) and not per request.
//
// All recording functions are thread-safe, never block and take no lock: counters and histograms
// are sharded over cache lines and summed at the scrape. Only the first recording in a series
// allocates.

#ifndef NORMD_SERVER_METRICS_METRICS_H_
#define NORMD_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/metrics/handles.h"
#include "server/metrics/traffic.h"

namespace prometheus {
struct MetricFamily;
}  // namespace prometheus

namespace normd {

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

// Owns every series. Thread-safe. Outlives all handles that it gave, but for those of models.
class Metrics {
 public:
  virtual ~Metrics() = default;

  // The series of a loaded model version, for as long as it is loaded and its calls are in flight:
  // shared, because the last of them to go ends the series, two scrapes later. A version that is
  // loaded again before goes on where it was. Beyond MetricsOptions::max_model_series, the series
  // that all further versions share. Call it at load, never with a name that a client sent.
  virtual std::shared_ptr<ModelMetrics> ForModel(absl::string_view name, std::int64_t version) = 0;
  // Requests that name no loaded model, and methods that concern none: model="", version="".
  virtual ModelMetrics& ForNoModel() = 0;
  // The series of an identity, as ForModel's, "" for calls that are nobody's; beyond
  // kMaxIdentitySeries those that all further ones share. Call it when a policy is taken.
  virtual std::shared_ptr<IdentityMetrics> ForIdentity(absl::string_view name) = 0;
  // Its series are there from the first call on.
  virtual ConnectionMetrics& ForConnections(RequestPort port) = 0;
  virtual TlsMetrics& ForTls() = 0;
  // Its series are there from the first call on.
  virtual PolicyMetrics& ForPolicy() = 0;
  virtual RegionMetrics& ForRegions() = 0;
  virtual RepositoryMetrics& ForRepository() = 0;
  // A lane is working from here on.
  virtual LaneMetrics& ForLane(absl::string_view device, absl::string_view lane) = 0;
  // What the device is, for people; the last call for a device counts.
  virtual void SetDevice(absl::string_view device, absl::string_view description) = 0;
  virtual void SetLimits(const MetricsLimits& limits) = 0;

  virtual void AddInflightBytes(std::int64_t bytes) = 0;  // Negative when they leave.
  virtual void AddPayload(std::int64_t in_bytes, std::int64_t out_bytes) = 0;
  virtual void SetReady(bool ready) = 0;
  // Calls `read` at each scrape, from the scraper's thread, until the returned handle is destroyed,
  // which waits for a call in progress. Pools of one name are added up. `read` must not block.
  virtual std::shared_ptr<void> WatchPool(std::string pool, std::function<PoolUse()> read) = 0;
  // Calls `read` at each scrape, for as long as this lives: the log lines that were lost so far.
  virtual void WatchLostLogLines(std::function<std::int64_t()> read) = 0;

  // The same for the share of time in which calls had to wait: see Saturation.
  virtual void WatchSaturation(std::function<double()> read) = 0;

  // The whole exposition in Prometheus' text format, without the process's own series. Counts as a
  // scrape for the series of models that are gone.
  virtual std::string Scrape() = 0;
  // The same as a list, for this folder's Exposer.
  virtual std::vector<prometheus::MetricFamily> Collect() = 0;
  // Those that are no model's and no identity's; does not count as a scrape.
  virtual std::vector<prometheus::MetricFamily> CollectServer() = 0;
  // The calls of all models and the time of all lanes; does not count as a scrape either.
  virtual Traffic ReadTraffic() = 0;
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

std::unique_ptr<Metrics> CreateMetrics(const BuildInfo& build, const MetricsOptions& options = {});

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_METRICS_H_

// The operating system's numbers about this process, under the names of Prometheus' own clients.

#ifndef NORMD_SERVER_METRICS_PROCESS_COLLECTOR_H_
#define NORMD_SERVER_METRICS_PROCESS_COLLECTOR_H_

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace normd {

// process_cpu_seconds_total, process_resident_memory_bytes, process_start_time_seconds,
// process_open_fds and process_max_fds. Reads files at each scrape; thread-safe. Leaves out what it
// cannot read: a scrape never fails for it.
// Source: https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics
class ProcessCollector final : public prometheus::Collectable {
 public:
  // `proc`: where the proc file system is.
  explicit ProcessCollector(std::string proc = "/proc") : proc_(std::move(proc)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string proc_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_PROCESS_COLLECTOR_H_

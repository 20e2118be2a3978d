// Serves /metrics over HTTP for Prometheus: what `Metrics` holds, and the process's own series.

#ifndef NORMD_SERVER_METRICS_EXPOSER_H_
#define NORMD_SERVER_METRICS_EXPOSER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"

namespace normd {

// Listens until destroyed, which waits for scrapes in progress and for the HTTP server's poll: up
// to two seconds. `metrics` outlives it.
class Exposer {
 public:
  virtual ~Exposer() = default;
  virtual int port() const = 0;  // The port in use, also when 0 was asked for.
};

// `address`: "127.0.0.1:8002", port 0 for a free one. InvalidArgument when it is no such address,
// Unavailable when it cannot be bound; both show it.
absl::StatusOr<std::unique_ptr<Exposer>> StartExposer(const std::string& address, Metrics& metrics);

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_EXPOSER_H_

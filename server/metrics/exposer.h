// Serves /metrics over HTTP for Prometheus: what `Metrics` holds, and the process's own series; and
// for people the live page at /, with its data at /status.json.

#ifndef NORMD_SERVER_METRICS_EXPOSER_H_
#define NORMD_SERVER_METRICS_EXPOSER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/http/http_tls.h"
#include "server/metrics/metrics.h"
#include "server/metrics/status_json.h"

namespace normd {

// The caller that asks for a path. Borrows.
struct PathRequest {
  absl::string_view path;
  absl::string_view peer;
  std::optional<absl::string_view> authorization;  // As HttpRequest's.
  // The client certificate's URIs, likewise.
  absl::Span<const std::string> uris = {};
  absl::Span<const std::string> dns_names = {};
};

struct ExposerOptions {
  Duration timeout = std::chrono::seconds(10);  // For a request to arrive, and for its response.
  std::size_t max_connections = 64;             // One peer may have a quarter of them.
  // The HTTP status for any other path; without it, 404. Called on the thread that
  // serves all connections, which it must not hold up.
  std::function<int(absl::string_view path)> probe = nullptr;
  // The HTTP status with which a request is refused, 401, 403 or 429; 0: it may. Asked first, on
  // the same thread; without it, everybody may.
  std::function<int(const PathRequest&)> refuse = nullptr;
  HttpTlsContext tls = nullptr;  // Null: no TLS.
  // What the page tells that is in no metric; without it, that the server is ready. Called on a
  // thread that serves nothing else.
  std::function<ServerFacts()> facts = nullptr;
};

// Listens until destroyed, which waits for a scrape that is being made. `metrics` outlives it.
// A scrape shows what was recorded before its request came. Scrapes that come while one is being
// made share the next one, so that many of them cost little more than two.
class Exposer {
 public:
  virtual ~Exposer() = default;
  virtual int port() const = 0;  // The port in use, also when 0 was asked for.
};

// `address`: "127.0.0.1:8002", port 0 for a free one. InvalidArgument when it is no such address,
// Unavailable when it cannot be bound; both show it.
absl::StatusOr<std::unique_ptr<Exposer>> StartExposer(const std::string& address, Metrics& metrics,
                                                      const ExposerOptions& options = {});

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_EXPOSER_H_

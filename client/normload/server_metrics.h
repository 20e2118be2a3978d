// The server's own metrics of a run: /metrics, scraped when the measurement begins and after it has
// ended.

#ifndef NORMD_CLIENT_NORMLOAD_SERVER_METRICS_H_
#define NORMD_CLIENT_NORMLOAD_SERVER_METRICS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/scrape/http_get.h"
#include "client/scrape/metrics_text.h"

namespace normd::load {

struct ServerMetrics {
  double elapsed_s = 0;  // Between the scrapes.
  client::ServerGrowth growth;
};

// Not thread-safe.
class MetricsWatch {
 public:
  MetricsWatch(client::HttpUrl url, client::HttpSecurity security)
      : url_(std::move(url)), security_(std::move(security)) {}

  // The first successful scrape is the beginning. Blocks for up to a second; errors as HttpGet and
  // ParseMetrics.
  absl::Status Begin();
  bool begun() const { return begin_.has_value(); }
  // The growth since then; FailedPrecondition without a beginning. Blocks likewise.
  absl::StatusOr<ServerMetrics> Finish() const;

 private:
  struct Scrape {
    TimePoint at{};
    std::vector<client::MetricSample> samples;
  };
  absl::StatusOr<Scrape> Take() const;

  const client::HttpUrl url_;
  const client::HttpSecurity security_;
  std::optional<Scrape> begin_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_SERVER_METRICS_H_

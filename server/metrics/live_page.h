// The live page of the metrics port, and the data that it shows.

#ifndef NORMD_SERVER_METRICS_LIVE_PAGE_H_
#define NORMD_SERVER_METRICS_LIVE_PAGE_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/periodic_thread.h"
#include "server/http/http_message.h"
#include "server/metrics/metrics.h"
#include "server/metrics/scraper.h"
#include "server/metrics/status_json.h"
#include "server/metrics/traffic_history.h"

namespace normd {

struct LivePageSources {
  std::function<ServerFacts()> facts;  // Called on the page's thread; may take a moment.
  std::function<std::vector<prometheus::MetricFamily>()> families;  // Likewise.
};

// One HTML page that loads nothing but /status.json, every five seconds. A thread reads the calls
// as often, even while nobody looks, so the page shows the last ten minutes at once; the rest is
// read when it is asked for. All who ask within a second get one text. Thread-safe.
class LivePage {
 public:
  static constexpr Duration kInterval = std::chrono::seconds(5);

  // `metrics` outlives it.
  LivePage(Metrics& metrics, LivePageSources sources);
  ~LivePage() { Stop(); }
  LivePage(const LivePage&) = delete;
  LivePage& operator=(const LivePage&) = delete;

  HttpResponse Page() const;
  // Calls `respond` on another thread, never after Stop.
  void Status(bool gzip, std::function<void(HttpResponse)> respond);
  // Waits for a text in progress. Idempotent.
  void Stop();

 private:
  void ReadTraffic();
  std::string MakeText();

  Metrics& metrics_;
  const LivePageSources sources_;
  const SteadyClock clock_;
  TrafficHistory history_;
  std::string text_;  // Only for the scraper's thread, as the next.
  TimePoint text_at_{};
  Scraper scraper_;
  std::optional<PeriodicThread> reader_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_LIVE_PAGE_H_

#include "server/metrics/exposer.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "server/http/http_server.h"
#include "server/metrics/live_page.h"
#include "server/metrics/process_collector.h"
#include "server/metrics/scraper.h"

namespace normd {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";

void AddSeries(MetricFamily& family, std::vector<prometheus::ClientMetric::Label> labels,
               std::int64_t value) {
  prometheus::ClientMetric& series = family.metric.emplace_back();
  series.label = std::move(labels);
  (family.type == MetricType::Counter ? series.counter.value : series.gauge.value) =
      static_cast<double>(value);
}

// The HTTP server's own series.
std::vector<MetricFamily> Collect(const HttpServerStats& stats) {
  MetricFamily connections{"normd_http_connections",
                           "Connections to the metrics port (--max_metrics_connections).",
                           MetricType::Gauge,
                           {}};
  AddSeries(connections, {}, stats.connections);
  MetricFamily dropped{
      "normd_http_dropped_total",
      "Connections to the metrics port that were too slow (timeout), that made room "
      "for others (limit), or that found no descriptor (descriptors).",
      MetricType::Counter,
      {}};
  AddSeries(dropped, {{"reason", "timeout"}}, stats.timeouts);
  AddSeries(dropped, {{"reason", "limit"}}, stats.evictions);
  AddSeries(dropped, {{"reason", "descriptors"}}, stats.exhausted);
  MetricFamily responses{"normd_http_responses_total",
                         "Responses of the metrics port by HTTP status.",
                         MetricType::Counter,
                         {}};
  for (std::size_t i = 0; i < stats.responses.size(); ++i) {
    const auto& known = HttpServerStats::kStatuses;
    AddSeries(responses, {{"code", i < known.size() ? absl::StrCat(known[i]) : "other"}},
              stats.responses[i]);
  }
  return {connections, dropped, responses};
}

class ExposerImpl final : public Exposer {
 public:
  ExposerImpl(Metrics& metrics, const ExposerOptions& options)
      : metrics_(metrics),
        probe_(options.probe),
        refuse_(options.refuse),
        scraper_([this] { return MakeText(); }),
        page_(metrics, {options.facts, [this] { return WithOwn(metrics_.CollectServer()); }}) {}
  // They answer through the server, and the server asks them.
  ~ExposerImpl() override {
    page_.Stop();
    scraper_.Stop();
  }

  absl::Status Start(const std::string& address, const ExposerOptions& options) {
    HttpServerOptions http;
    http.timeout = options.timeout;
    http.tls = options.tls;
    http.connections.all = options.max_connections;
    http.connections.of_peer = std::max<std::size_t>(options.max_connections / 4, 1);
    auto server = HttpServer::Start(
        address, http, [this](const HttpRequest& request, HttpServer::Respond respond) {
          Handle(request, std::move(respond));
        });
    if (!server.ok()) {
      return absl::Status(server.status().code(),
                          absl::StrCat("metrics_listen: ", server.status().message()));
    }
    MutexLock lock(mutex_);
    server_ = *std::move(server);
    return absl::OkStatus();
  }

  int port() const override {
    MutexLock lock(mutex_);
    return server_->port();
  }

 private:
  void Handle(const HttpRequest& request, HttpServer::Respond respond) {
    const PathRequest asked{request.path, request.peer, request.authorization,
                            request.certificate.uris, request.certificate.dns_names};
    if (const int status = refuse_ ? refuse_(asked) : 0; status != 0) {
      return respond({status, kTextFormat, false, nullptr});
    }
    if (request.path == "/") return respond(page_.Page());
    if (request.path == "/status.json") {
      return page_.Status(request.accepts_gzip, std::move(respond));
    }
    if (request.path != "/metrics") {
      return respond({probe_ ? probe_(request.path) : 404, kTextFormat, false, nullptr});
    }
    scraper_.Ask(request.accepts_gzip,
                 [gzip = request.accepts_gzip, respond = std::move(respond)](Scraper::Text text) {
                   if (text == nullptr) return respond({503, kTextFormat, false, nullptr});
                   respond({200, kTextFormat, gzip, std::move(text)});
                 });
  }

  std::string MakeText() {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, WithOwn(metrics_.Collect()));
    return std::move(out).str();
  }

  // With the process's and the HTTP server's series.
  std::vector<MetricFamily> WithOwn(std::vector<MetricFamily> families) const {
    const auto append = [&families](std::vector<MetricFamily> more) {
      std::move(more.begin(), more.end(), std::back_inserter(families));
    };
    append(process_.Collect());
    // A request may come before Start has returned.
    MutexLock lock(mutex_);
    if (server_ != nullptr) append(normd::Collect(server_->stats()));
    return families;
  }

  Metrics& metrics_;
  const std::function<int(absl::string_view)> probe_;
  const std::function<int(const PathRequest&)> refuse_;
  const ProcessCollector process_;
  mutable Mutex mutex_;
  Scraper scraper_;
  LivePage page_;
  std::unique_ptr<HttpServer> server_ ABSL_GUARDED_BY(mutex_);  // Goes before these two.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> StartExposer(const std::string& address, Metrics& metrics,
                                                      const ExposerOptions& options) {
  auto exposer = std::make_unique<ExposerImpl>(metrics, options);
  if (absl::Status status = exposer->Start(address, options); !status.ok()) return status;
  return std::unique_ptr<Exposer>(std::move(exposer));
}

}  // namespace normd

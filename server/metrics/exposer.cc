#include "server/metrics/exposer.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"
#include "server/base/printable.h"
#include "server/metrics/process_collector.h"

namespace normd {
namespace {

class Source final : public prometheus::Collectable {
 public:
  explicit Source(Metrics& metrics) : metrics_(metrics) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return metrics_.Collect(); }

 private:
  Metrics& metrics_;
};

class ExposerImpl final : public Exposer {
 public:
  ExposerImpl(std::unique_ptr<prometheus::Exposer> server, Metrics& metrics)
      : source_(std::make_shared<Source>(metrics)), server_(std::move(server)) {
    server_->RegisterCollectable(source_);
    server_->RegisterCollectable(process_);
    const std::vector<int> ports = server_->GetListeningPorts();
    if (!ports.empty()) port_ = ports.front();
  }
  int port() const override { return port_; }

 private:
  // shared: the server keeps a weak_ptr of each.
  std::shared_ptr<Source> source_;
  std::shared_ptr<ProcessCollector> process_ = std::make_shared<ProcessCollector>();
  std::unique_ptr<prometheus::Exposer> server_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> StartExposer(const std::string& address,
                                                      Metrics& metrics) {
  // Civetweb would take a comma for a second address and a letter after the port for TLS.
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.find(',') != std::string::npos ||
      colon + 1 == address.size() ||
      address.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address: \"", Printable(address),
                                                   "\", wanted host:port, such as 127.0.0.1:8002"));
  }
  try {
    // Two threads: one scrape can run while a slow client holds another.
    const std::vector<std::string> options = {"listening_ports", address, "num_threads", "2"};
    return std::make_unique<ExposerImpl>(std::make_unique<prometheus::Exposer>(options), metrics);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("metrics address: cannot listen on ",
                                               Printable(address), ": ", Printable(e.what())));
  }
}

}  // namespace normd

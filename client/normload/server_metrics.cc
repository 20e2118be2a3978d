#include "client/normload/server_metrics.h"

#include <chrono>
#include <utility>

namespace normd::load {

absl::StatusOr<MetricsWatch::Scrape> MetricsWatch::Take() const {
  const SteadyClock clock;
  const absl::StatusOr<std::string> text =
      client::HttpGet(url_, std::chrono::seconds(1), security_);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<client::MetricSample>> samples = client::ParseMetrics(*text);
  if (!samples.ok()) return samples.status();
  return Scrape{clock.Now(), *std::move(samples)};
}

absl::Status MetricsWatch::Begin() {
  if (begin_) return absl::OkStatus();
  absl::StatusOr<Scrape> scrape = Take();
  if (!scrape.ok()) return scrape.status();
  begin_ = *std::move(scrape);
  return absl::OkStatus();
}

absl::StatusOr<ServerMetrics> MetricsWatch::Finish() const {
  if (!begin_) return absl::FailedPreconditionError("the run ended before its warm-up");
  const absl::StatusOr<Scrape> end = Take();
  if (!end.ok()) return end.status();
  return ServerMetrics{std::chrono::duration<double>(end->at - begin_->at).count(),
                       client::GrowthBetween(begin_->samples, end->samples)};
}

}  // namespace normd::load

// Metrics in Prometheus' text format, and what happened between two scrapes of a normd server.

#ifndef NORMD_CLIENT_SCRAPE_METRICS_TEXT_H_
#define NORMD_CLIENT_SCRAPE_METRICS_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd::client {

struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// Every sample of the text. InvalidArgument names the line that is none.
absl::StatusOr<std::vector<MetricSample>> ParseMetrics(absl::string_view text);

// A histogram's growth between two scrapes.
struct HistogramGrowth {
  double count = 0;
  double sum_s = 0;
  std::map<double, double> below;  // By upper bound, in seconds: how many are at most that.

  double mean_s() const { return count > 0 ? sum_s / count : 0; }
  // Interpolated within a bucket, as Prometheus' histogram_quantile does; the last finite bound for
  // what lies beyond it; zero when nothing was recorded.
  double Quantile(double share) const;
};

// What a server says that it did between two scrapes, for whomever.
struct ServerGrowth {
  struct Model {
    std::string model;
    HistogramGrowth request;  // Normalize and ModelInfer, from arrival to hand-over.
    HistogramGrowth stream;   // NormalizeStream, likewise.
    std::map<std::string, HistogramGrowth> stages;  // By stage; of a stream, of its pieces.
  };
  std::vector<Model> models;                  // Those with requests, by name.
  std::map<std::string, double> lane_busy_s;  // By lane.
  double cpu_s = 0;                           // The process's processor time.
};

ServerGrowth GrowthBetween(const std::vector<MetricSample>& before,
                           const std::vector<MetricSample>& after);

}  // namespace normd::client

#endif  // NORMD_CLIENT_SCRAPE_METRICS_TEXT_H_

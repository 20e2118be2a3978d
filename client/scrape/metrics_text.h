// Metrics in Prometheus' text format, and the growth between two scrapes of a normd server.

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

// Every sample of the text. InvalidArgument names the invalid line.
absl::StatusOr<std::vector<MetricSample>> ParseMetrics(absl::string_view text);

// A histogram's growth between two scrapes.
struct HistogramGrowth {
  double count = 0;
  double sum_s = 0;
  std::map<double, double> below;  // By upper bound, in seconds: the number of values up to it.

  double mean_s() const { return count > 0 ? sum_s / count : 0; }
  // Interpolated within a bucket, as by Prometheus' histogram_quantile; beyond the last finite
  // bound, that bound; zero when nothing was recorded.
  double Quantile(double share) const;
};

// The server's work between two scrapes, for all its clients.
struct ServerGrowth {
  struct Model {
    std::string model;
    HistogramGrowth request;  // Single requests, over gRPC and HTTP, from arrival to the response.
    HistogramGrowth stream;   // NormalizeStream, likewise.
    std::map<std::string, HistogramGrowth> stages;  // By stage; for streams, of their pieces.
  };
  std::vector<Model> models;                  // The models with requests, by name.
  std::map<std::string, double> lane_busy_s;  // By lane.
  double cpu_s = 0;                           // The process's processor time.
};

ServerGrowth GrowthBetween(const std::vector<MetricSample>& before,
                           const std::vector<MetricSample>& after);

}  // namespace normd::client

#endif  // NORMD_CLIENT_SCRAPE_METRICS_TEXT_H_

#include "tests/support/metric_value.h"

#include <algorithm>

namespace normd {

std::int64_t MetricValue(Metrics& metrics, const Family& family,
                         std::initializer_list<absl::string_view> labels) {
  double sum = 0;
  for (const prometheus::MetricFamily& collected : metrics.Collect()) {
    if (collected.name != family.name) continue;
    for (const prometheus::ClientMetric& series : collected.metric) {
      const auto has = [&series](absl::string_view value) {
        return std::any_of(series.label.begin(), series.label.end(),
                           [value](const auto& label) { return label.value == value; });
      };
      if (std::all_of(labels.begin(), labels.end(), has)) {
        sum += series.counter.value + series.gauge.value;
      }
    }
  }
  return static_cast<std::int64_t>(sum);
}

}  // namespace normd

// The values of metrics, as a scrape has them.

#ifndef NORMD_TESTS_SUPPORT_METRIC_VALUE_H_
#define NORMD_TESTS_SUPPORT_METRIC_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "server/metrics/families.h"
#include "server/metrics/metrics.h"

namespace normd {

// The sum of the series of a counter or gauge of whole numbers that have all these values of
// labels; 0 without one.
std::int64_t MetricValue(Metrics& metrics, const Family& family,
                         std::initializer_list<absl::string_view> labels = {});

// A model's requests that wait, and those that were refused so.
inline std::int64_t Queued(const ModelMetrics& metrics) { return metrics.model()->Read().queued; }
inline std::int64_t Rejected(const ModelMetrics& metrics, Rejection reason) {
  return metrics.model()->Read().rejected[static_cast<std::size_t>(reason)];
}

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_METRIC_VALUE_H_

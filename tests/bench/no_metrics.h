// A server's metrics without the metrics: what recording costs is the difference.

#ifndef NORMD_TESTS_BENCH_NO_METRICS_H_
#define NORMD_TESTS_BENCH_NO_METRICS_H_

#include <memory>

#include "server/metrics/metrics.h"

namespace normd {

// Records nothing; Scrape and Collect are empty.
std::unique_ptr<Metrics> CreateNoMetrics();

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_NO_METRICS_H_

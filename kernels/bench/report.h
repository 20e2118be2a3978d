// What norm_bench prints: a table as the cases finish, and a JSON file.

#ifndef NORMD_KERNELS_BENCH_REPORT_H_
#define NORMD_KERNELS_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "kernels/bench/device.h"

namespace normd::norm::bench {

struct Result {
  Case measured;
  Measurement measurement;
  Status status;  // If not ok, the case did not run, and the measurement means nothing.
};

std::string TableHeader();
std::string TableLine(const Result& result);

// {"device": ..., "results": [{"op", "dtype", "layout", "shape", "strategy", "norm_ms", "copy_ms",
// "gb_per_s", "replay_ms" if there is one, "ratio_to_copy", "max_error", "checked_elements",
// "repetitions"} or
// {"op", "dtype", "layout", "shape", "error"}, ...]}. An infinite max_error is null.
std::string Json(const std::string& device, const std::vector<Result>& results);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_REPORT_H_

// norm_bench's command line.

#ifndef NORMD_KERNELS_BENCH_OPTIONS_H_
#define NORMD_KERNELS_BENCH_OPTIONS_H_

#include <string>
#include <vector>

#include "kernels/bench/case.h"
#include "kernels/bench/device.h"
#include "kernels/bench/linear.h"

namespace normd::norm::bench {

struct Options {
  std::string device = "cpu";
  std::string filter;     // Keeps the cases whose name contains it.
  std::string json_path;  // Empty: no file.
  bool explain = false;
  bool help = false;
  Settings settings;
  std::vector<Case> cases;
  std::vector<LinearCase> linear_cases;  // If not empty, only these run.
};

extern const char kUsage[];

// InvalidArgument names the flag, what came and what was wanted.
Status ParseOptions(const std::vector<std::string>& arguments, Options* out);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_OPTIONS_H_

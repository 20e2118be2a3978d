// The fused layer in norm_bench: its cases, and their report.

#ifndef NORMD_KERNELS_BENCH_LINEAR_H_
#define NORMD_KERNELS_BENCH_LINEAR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bench/device.h"
#include "kernels/linear_norm.h"

namespace normd::norm::bench {

struct LinearCase {
  std::int64_t samples = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  DType dtype = DType::kFloat32;
  Precision precision = Precision::kFloat32;

  std::string shape() const;  // "1024x8192x8192": samples, in, out
  double operations() const;  // The product alone.
};

struct LinearMeasurement {
  std::string strategy;  // What computed the case; on CUDA the tile, features x samples.
  double layer_ms = 0;   // Medians of one call.
  double product_ms =
      0;  // oneDNN's float32 product of these sizes alone, its weight packed; CPU only.
  // Median over the repetitions of product time / layer time, each pair measured back to back: 1 is
  // the speed of the bare product.
  double ratio = 0;
  int repetitions = 0;
  double max_error = 0;  // As Measurement's; on CUDA the largest |out - reference|.
  std::int64_t checked_samples = 0;
};

struct LinearResult {
  LinearCase measured;
  LinearMeasurement measurement;
  Status status;  // If not ok, the case did not run, and the measurement means nothing.
};

// A shape such as "1024x8192x8192", a type and a precision by their names. InvalidArgument names
// the part that does not parse.
Status ParseLinearCase(const std::string& shape, const std::string& dtype,
                       const std::string& precision, LinearCase* out);

std::string LinearTableHeader();
std::string LinearTableLine(const LinearResult& result);
// {"device": ..., "results": [{"op": "linear_norm", "dtype", "precision", "shape", "strategy",
// "layer_ms", "product_ms", "ratio_to_product", "tflop_per_s", "max_error", "checked_samples",
// "repetitions"} or {"op", "dtype", "precision", "shape", "error"}, ...]}. product_ms and
// ratio_to_product are null where they are not measured.
std::string LinearJson(const std::string& device, const std::vector<LinearResult>& results);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_LINEAR_H_

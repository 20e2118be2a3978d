// The fused layer on the CPU beside the matrix product that it cannot be faster than.

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

  std::string shape() const;  // "1024x8192x8192": samples, in, out
};

struct LinearMeasurement {
  double layer_ms = 0;    // Medians of one call.
  double product_ms = 0;  // oneDNN's float32 product of these sizes alone, its weight packed.
  // Median over the repetitions of product time / layer time, each pair measured back to back: 1 is
  // the speed of the bare product.
  double ratio = 0;
  int repetitions = 0;
  double max_error = 0;  // As Measurement's.
  std::int64_t checked_samples = 0;
};

// "1024x8192x8192". InvalidArgument for anything else.
Status ParseLinearCase(const std::string& shape, const std::string& dtype, LinearCase* out);

// Computes (z + y) * y on random tensors, checks a few samples against float64, then measures.
// Unsupported in a build without CPU kernels. Blocks.
Status MeasureLinear(const Settings& settings, const LinearCase& c, LinearMeasurement* out);

std::string LinearTableHeader();
std::string LinearTableLine(const LinearCase& c, const LinearMeasurement& measurement,
                            const Status& status);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_LINEAR_H_

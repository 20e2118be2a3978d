#include "kernels/bench/staged_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference.h"

namespace normd::norm::bench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ErrorOf(double got, double want) {
  if (std::isnan(want) && std::isnan(got)) return 0;
  const double error = std::fabs(got - want) / std::max(1.0, std::fabs(want));
  return std::isnan(error) ? kInfinity : error;
}

// The least distance between `want` and any value that rounds to `got`, both over the scale.
double RoundingError(Quantization quantization, double got, double want) {
  char bytes = 0;
  StoreQuantized(quantization, &bytes, 0, want);
  const double rounded = LoadQuantized(quantization, &bytes, 0);
  if (rounded == got || (std::isnan(rounded) && std::isnan(got))) return 0;
  // Between neighbours the midpoint decides; farther apart this is at least half the distance.
  return std::fabs(want - (rounded + got) / 2);
}

double QuantizedError(const NormSpec& spec, const Segment& segment, const std::vector<double>& y) {
  const bool is_static = spec.quantization_scale == QuantizationScale::kStatic;
  const auto row = static_cast<std::size_t>(RowLength(spec, segment.spatial));
  std::size_t block = row;
  if (spec.quantization_scale == QuantizationScale::kBlock) block = kQuantizationBlock;
  const std::size_t blocks = (row + block - 1) / block;
  double worst = 0;
  if (!is_static) {
    const std::vector<double> scales = ReferenceScales(spec, segment, y.data());
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const double error = std::fabs(double{segment.scale_out[i]} / scales[i] - 1);
      worst = std::max(worst, std::isnan(error) ? kInfinity : error);
    }
  }
  // Rows with scales of their own are contiguous: see case.h.
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double scale = is_static ? spec.output_scale
                                   : double{segment.scale_out[i / row * blocks + i % row / block]};
    const double got = LoadQuantized(spec.quantization, segment.y, static_cast<std::int64_t>(i));
    const double error = RoundingError(spec.quantization, got, y[i] / scale) * scale;
    worst = std::max(worst, std::isnan(error) ? kInfinity : error / std::max(1.0, std::fabs(y[i])));
  }
  return worst;
}

}  // namespace

double StagedMaxError(const NormSpec& spec, const NormParams& params, const Segment& segment) {
  const std::int64_t elements = segment.samples * spec.channels * segment.spatial;
  std::vector<double> y(static_cast<std::size_t>(elements));
  if (!NormalizeReference(spec, params, segment, y.data()).ok()) return kInfinity;
  double worst = 0;
  if (segment.residual_out != nullptr) {
    for (std::int64_t i = 0; i < elements; ++i) {
      worst = std::max(worst, ErrorOf(LoadElement(spec.dtype, segment.residual_out, i),
                                      NormalizedElement(spec, params, segment, i)));
    }
  }
  if (spec.quantization != Quantization::kNone) {
    return std::max(worst, QuantizedError(spec, segment, y));
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    worst = std::max(
        worst, ErrorOf(LoadElement(spec.dtype, segment.y, i), y[static_cast<std::size_t>(i)]));
  }
  return worst;
}

}  // namespace normd::norm::bench

// The arguments of the loops of stage_loops.h.

#ifndef NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_
#define NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_

#include <cstdint>
#include <limits>

#include "kernels/cpu/loop_arguments.h"
#include "kernels/stages.h"

namespace normd::norm::cpu {

// A line of a tile: element i is normalized by the statistics of column i.
// y = activation(((x * factor - center[i]) * scale[i] + shift[i]) * line_scale + line_shift)
struct LineAffine {
  double factor = 1;
  const void* center = nullptr;  // Acc[count], times factor
  const void* scale = nullptr;   // Acc[count], divided by factor
  const void* shift = nullptr;   // Acc[count]
  double line_scale = 1;
  double line_shift = 0;
};

// A run between tensor memory and a buffer.
struct StageRun : Run {
  bool from_buffer = false;  // x is Acc[count], else of the type.
  bool to_buffer = false;    // Likewise y.
};

// The factors of quantized values before they are rounded.
struct QuantizationFactors {
  Quantization quantization = Quantization::kInt8;
  const void* per_element = nullptr;  // Acc[count], or null:
  const void* per_block = nullptr;    // Acc for each kQuantizationBlock elements, or null:
  double all = 1;
};

// The scale of elements whose largest magnitude is `largest`, and its reciprocal factor.
inline float ScaleOf(Quantization quantization, double largest) {
  const auto scale = static_cast<float>(largest / LargestQuantized(quantization));
  return scale < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min() : scale;
}
inline double FactorOf(float scale) { return 1 / static_cast<double>(scale); }

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_

// What the loops of stage_loops.h take.

#ifndef NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_
#define NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_

#include <cstdint>

#include "kernels/cpu/loop_arguments.h"
#include "kernels/stages.h"

namespace normd::norm::cpu {

// `count` adjacent elements on their way into the buffer: ((x + bias) * gate + residual), rounded
// to the type if `rounded`, or combine(x, other). Inputs begin at any byte.
struct InputRun {
  const void* x = nullptr;
  std::int64_t count = 0;
  const void* residual = nullptr;
  const void* other = nullptr;  // With `combine`.
  Combine combine = Combine::kNone;
  // Acc[count] if `per_element`, else one Acc for all; null: none.
  const void* bias = nullptr;
  const void* gate = nullptr;
  bool per_element = false;
  bool rounded = false;
  void* sum = nullptr;  // Also written here, if not null; may be x or residual.
};

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

// A run, from the type of the tensor or from the buffer's, and what joins after the activation.
struct StageRun : Run {
  bool from_buffer = false;  // x is Acc[count], else of the type.
  Combine combine = Combine::kNone;
  const void* other = nullptr;  // With `combine`; of the type, at any byte.
};

// What quantized values are multiplied with before they are rounded.
struct QuantizationFactors {
  Quantization quantization = Quantization::kInt8;
  const void* per_element = nullptr;  // Acc[count], or null:
  double all = 1;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGE_ARGUMENTS_H_

// The vector loops of the stages that the specialised kernels (simd_kernels.h) do not have: between
// memory and a buffer of the accumulation type ("Acc": double for float64, float for the others),
// and within it. Selected at run time for this machine's instruction set. They are single-threaded,
// allocate nothing and validate nothing; results never depend on alignment.

#ifndef NORMD_KERNELS_CPU_STAGE_LOOPS_H_
#define NORMD_KERNELS_CPU_STAGE_LOOPS_H_

#include <cstdint>

#include "kernels/cpu/stage_arguments.h"
#include "kernels/stages.h"
#include "kernels/types.h"

namespace normd::norm::cpu {

struct StageLoops {
  void (*read)(const InputRun& run, void* v);
  // Apply SimdKernels' maps, and that of a line.
  void (*apply)(const StageRun& run, const Affine& affine);
  void (*apply_elements)(const StageRun& run, const ElementAffine& affine);
  void (*apply_line)(const StageRun& run, const LineAffine& affine);
  void (*quantize)(const void* v, const QuantizationFactors& factors, void* y, std::int64_t count);
  // At most kChunkElements; writes a scale for each block of kQuantizationBlock.
  void (*quantize_blocks)(const void* v, Quantization quantization, float* scales, void* y,
                          std::int64_t count);
  // The sum of |v|, and the largest |v|; a NaN makes it NaN.
  double (*sum_of_absolutes)(const void* v, std::int64_t count);
  double (*largest_absolute)(const void* v, std::int64_t count);
  // largest[i] = max(largest[i], |v[i]|), likewise.
  void (*raise_to_absolutes)(const void* v, void* largest, std::int64_t count);
};

const StageLoops& StageLoopsFor(DType dtype);

// As PortableKernelsFor.
const StageLoops& PortableStageLoopsFor(DType dtype);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGE_LOOPS_H_

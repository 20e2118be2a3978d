// The vector loops of the fused layer around its products, for one row at a time, chosen at run
// time for the instruction set of this machine. Single-threaded; they allocate and validate
// nothing.

#ifndef NORMD_KERNELS_CPU_LINEAR_ROWS_H_
#define NORMD_KERNELS_CPU_LINEAR_ROWS_H_

#include <cstdint>

#include "kernels/cpu/batch.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cpu {

struct LinearRowKernels {
  // `count` elements of the dtype, exactly.
  void (*widen)(const void* x, std::int64_t count, float* to);
  // to[i] = z[i] + bias[i]; a null bias is 0.
  void (*add_bias)(const float* z, const float* bias, std::int64_t count, float* to);
  // out[i] = activation(epilogue((row[i] - mean) * rstd, y[i])), y and out of the dtype; y is null
  // where the epilogue uses none, and may be out.
  void (*finish)(const float* row, std::int64_t count, const RowStatistics& statistics,
                 const norm::Epilogue& epilogue, const void* y, void* out);
};

// float32, float16 or bfloat16.
const LinearRowKernels& LinearRowKernelsFor(DType dtype);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LINEAR_ROWS_H_

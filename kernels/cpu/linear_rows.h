// The vector loops of the fused layer around its products, for one row at a time, chosen at run
// time for the instruction set of this machine. Single-threaded; they allocate and validate
// nothing.

#ifndef NORMD_KERNELS_CPU_LINEAR_ROWS_H_
#define NORMD_KERNELS_CPU_LINEAR_ROWS_H_

#include <cstdint>

#include "kernels/cpu/batch.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cpu {

// A row of z as LinearProduct leaves it: `count` elements in tiles, the last of them perhaps not
// full.
struct TiledRow {
  const float* z = nullptr;
  std::int64_t count = 0;
  std::int64_t tile = 0;    // Elements of a tile.
  std::int64_t stride = 0;  // From one tile's first element to the next one's.
};

struct LinearRowKernels {
  // `count` elements of the dtype, exactly.
  void (*widen)(const void* x, std::int64_t count, float* to);
  Moments (*moments)(const TiledRow& row);
  // out[i] = activation(epilogue((row[i] - mean) * rstd, y[i])), y and out of the dtype; y is null
  // where the epilogue uses none, and may be out.
  void (*finish)(const TiledRow& row, const RowStatistics& statistics,
                 const norm::Epilogue& epilogue, const void* y, void* out);
};

// float32, float16 or bfloat16.
const LinearRowKernels& LinearRowKernelsFor(DType dtype);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LINEAR_ROWS_H_

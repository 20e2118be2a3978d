// The vector loops of the fused layer around its products, for one row at a time, selected at run
// time for this machine's instruction set. Single-threaded; they allocate and validate nothing.

#ifndef NORMD_KERNELS_CPU_LINEAR_ROWS_H_
#define NORMD_KERNELS_CPU_LINEAR_ROWS_H_

#include <cstdint>

#include "kernels/cpu/batch.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cpu {

// A row of z as LinearProduct leaves it: `count` elements in tiles, the last of which may not be
// full.
struct TiledRow {
  const float* z = nullptr;
  std::int64_t count = 0;
  std::int64_t tile = 0;    // Elements per tile.
  std::int64_t stride = 0;  // From one tile's first element to the next one's.
};

struct LinearRowKernels {
  // Converts `count` elements of the dtype exactly.
  void (*widen)(const void* x, std::int64_t count, float* to);
  Moments (*moments)(const TiledRow& row);
  // out[i] = activation(epilogue((row[i] - mean) * rstd, y[i])), y and out of the dtype; y is null
  // if the epilogue uses none, and may be out.
  void (*finish)(const TiledRow& row, const RowStatistics& statistics,
                 const norm::Epilogue& epilogue, const void* y, void* out);
};

// float32, float16 or bfloat16.
const LinearRowKernels& LinearRowKernelsFor(DType dtype);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LINEAR_ROWS_H_

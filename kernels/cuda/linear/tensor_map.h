// Tensor maps of compute capability 9.0: how the copy engine finds a tile of rows. Internal.

#ifndef NORMD_KERNELS_CUDA_LINEAR_TENSOR_MAP_H_
#define NORMD_KERNELS_CUDA_LINEAR_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

namespace normd::norm::cuda {

// The map of `rows` rows of `columns` 16-bit elements, for copies of `box_rows` rows of 64 elements
// into swizzled shared memory, with zeros outside the rows and columns. False if it is impossible:
// `data` and a row's bytes have to be multiples of 16, and the driver must support maps.
bool MapRows(const void* data, std::int64_t rows, std::int64_t columns, int box_rows,
             CUtensorMap* map);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_TENSOR_MAP_H_

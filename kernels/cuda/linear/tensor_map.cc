#include "kernels/cuda/linear/tensor_map.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/linear/linear_plan.h"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kMapAlignment = 16;

// The driver's function, found through the runtime: the library is not linked with the driver.
auto FindEncode() -> decltype(&cuTensorMapEncodeTiled) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

bool MapRows(const void* data, std::int64_t rows, std::int64_t columns, int box_rows,
             CUtensorMap* map) {
  static const auto encode = FindEncode();
  constexpr std::int64_t kElementBytes = 2;
  if (encode == nullptr || reinterpret_cast<std::uintptr_t>(data) % kMapAlignment != 0 ||
      columns * kElementBytes % kMapAlignment != 0) {
    return false;
  }
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[] = {static_cast<cuuint64_t>(columns * kElementBytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kStepElements),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t strides[] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(data), sizes, pitch, box,
                strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace normd::norm::cuda

// The number of thread-block clusters that a device holds at once, with one block to a
// multiprocessor. Its multiprocessors come in groups of unequal size, and a cluster lies in one
// group.

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace normd::norm::cuda {
namespace {

__global__ void FillsMultiprocessor() {}

}  // namespace

cudaError_t CountResidentClusters(DeviceLimits* limits) {
  const std::size_t shared_bytes = limits->shared_bytes_per_block - kReservedSharedBytes;
  const auto* const kernel = reinterpret_cast<const void*>(&FillsMultiprocessor);
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  for (int blocks = 2; blocks <= kMaxClusterBlocks; ++blocks) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(1);
    config.dynamicSmemBytes = shared_bytes;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // The device does not know this size: no clusters are resident.
      clusters = 0;
    }
    limits->resident_clusters[blocks] = clusters;
  }
  return cudaSuccess;
}

}  // namespace normd::norm::cuda

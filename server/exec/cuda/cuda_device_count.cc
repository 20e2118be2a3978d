#include "server/exec/cuda/cuda_device_count.h"

#include <cuda_runtime_api.h>

namespace normd {

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

}  // namespace normd

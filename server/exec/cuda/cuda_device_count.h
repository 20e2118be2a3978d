// The number of CUDA devices.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_

namespace normd {

// 0 also without a driver.
int CudaDeviceCount();

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_

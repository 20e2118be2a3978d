// How many CUDA devices there are.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_

namespace normd {

// 0 also where there is no driver.
int CudaDeviceCount();

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_COUNT_H_

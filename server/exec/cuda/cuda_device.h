// The CUDA devices, behind the Device seam.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/exec/device/device.h"

namespace normd {

// The number of CUDA devices; 0 also without a driver.
int CudaDeviceCount();

// Opens device `index`: creates its context and reads its limits, which takes a while.
// FailedPrecondition when there is no such device or the kernels do not support it.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_

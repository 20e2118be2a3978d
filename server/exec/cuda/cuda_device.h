// CUDA's implementations of the seams: devices, and the memory that clients share with them.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/page_locker.h"
#include "base/shared_device_memory.h"
#include "server/exec/device/device.h"

namespace normd {

// The number of CUDA devices; 0 also without a driver.
int CudaDeviceCount();

// Opens device `index`: creates its context and reads its limits, which takes a while.
// FailedPrecondition when there is no such device or the kernels do not support it.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

// Both are for the devices of the numbers `used`, which the server computes on, at least one.
std::unique_ptr<PageLocker> CreateCudaPageLocker(std::vector<int> used);
// By CUDA IPC. FailedPrecondition when the driver lacks a call.
absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> CreateCudaSharedMemory(std::vector<int> used);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_DEVICE_H_

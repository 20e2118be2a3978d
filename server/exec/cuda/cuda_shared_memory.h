// CUDA IPC as an implementation of base/shared_device_memory.h.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_MEMORY_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_MEMORY_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_device_memory.h"

namespace normd {

// For the devices of these numbers. FailedPrecondition when the driver lacks a call.
absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> CreateCudaSharedMemory(std::vector<int> used);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_MEMORY_H_

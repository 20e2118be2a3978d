// A stream of a CUDA device behind the seam.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_STREAM_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_STREAM_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "server/exec/cuda/cuda_context.h"
#include "server/exec/cuda/cuda_memory.h"
#include "server/exec/device/device.h"

namespace normd {

// Has a workspace for kernels over batches of up to `largest_launch_bytes`; 0: for copies only.
// Shares `context`; `memory` is not needed after the call.
absl::StatusOr<std::unique_ptr<DeviceStream>> CreateCudaStream(std::shared_ptr<CudaContext> context,
                                                               CudaMemory& memory,
                                                               std::size_t largest_launch_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_STREAM_H_

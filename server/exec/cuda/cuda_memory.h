// Memory of a CUDA device, and host memory that it can address.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_MEMORY_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "server/exec/cuda/cuda_context.h"
#include "server/exec/device/device.h"

namespace normd {

// Thread-safe. Buffers may outlive it. Ending a buffer waits for nothing: work on it must be done
// by then.
class CudaMemory {
 public:
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(std::shared_ptr<CudaContext> context);

  // ResourceExhausted, with the requested and the free amount. These may wait for the device.
  absl::StatusOr<Buffer> AllocateDevice(std::size_t bytes);
  absl::StatusOr<Buffer> AllocatePinned(std::size_t bytes);

  // Returns the memory of ended buffers first.
  absl::StatusOr<DeviceMemoryInfo> Info();

 private:
  // The device's pool; shared with every block in use.
  struct Pool {
    std::shared_ptr<CudaContext> context;  // shared: as the pool is.
    UniqueMemPool memory;
    UniqueStream stream;  // Blocks are allocated and freed on it.
  };
  explicit CudaMemory(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  const std::shared_ptr<Pool> pool_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_MEMORY_H_

// Memory and time on a CUDA device, for the benchmarks.

#ifndef NORMD_KERNELS_BENCH_CUDA_MEMORY_H_
#define NORMD_KERNELS_BENCH_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/status.h"

namespace normd::norm::bench {

// OutOfMemory or DeviceError, with `what` and CUDA's text.
Status ToStatus(cudaError_t error, const char* what);

struct FreeOnDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceBuffer = std::unique_ptr<void, FreeOnDevice>;

Status Allocate(std::size_t bytes, DeviceBuffer* out);
// Returns when the bytes are visible to every stream.
Status Upload(const std::vector<char>& host, DeviceBuffer* out);

// Not thread-safe.
class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Milliseconds of one of `calls` calls that are enqueued on the stream in sequence; `next`
  // numbers the calls. Blocks.
  Status Time(cudaStream_t stream, int calls, std::size_t* next,
              const std::function<Status(std::size_t)>& call, double* ms) const;
  // The same for a graph that captures the calls: the median of some replays.
  Status TimeReplay(cudaStream_t stream, int calls, std::size_t* next,
                    const std::function<Status(std::size_t)>& call, double* ms) const;

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CUDA_MEMORY_H_

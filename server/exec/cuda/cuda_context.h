// The state that a CUDA device shares with its streams and its memory.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_CONTEXT_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_CONTEXT_H_

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/normalize.h"

namespace normd {

struct DestroyStream {
  void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};
struct DestroyMemPool {
  void operator()(cudaMemPool_t pool) const { static_cast<void>(cudaMemPoolDestroy(pool)); }
};
// Owners of CUDA's handles.
using UniqueStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using UniqueEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using UniqueMemPool = std::unique_ptr<std::remove_pointer_t<cudaMemPool_t>, DestroyMemPool>;

// The name and the text of `error`. Clears it, unless it is sticky, for the next call of this
// thread.
std::string TakeError(cudaError_t error);
// The driver's function, in the form of that version; null if it has none. The program is not
// linked with the driver.
void* FindDriverFunction(const char* name, unsigned version);

// Thread-safe. Constant after Open, but for what its functions change.
class CudaContext {
 public:
  // Creates the context of device `index` and reads its limits, which takes a while.
  // FailedPrecondition when there is no such device, or the kernels or the driver do not support
  // it.
  static absl::StatusOr<std::shared_ptr<CudaContext>> Open(int index);

  // Internal with the names of the call and the error; ResourceExhausted if memory is short. Notes
  // an error after which the device is lost.
  absl::Status Check(cudaError_t error, const char* call);
  absl::Status Check(const norm::Status& status);

  // Makes this the calling thread's device, which the runtime requires before any other call.
  absl::Status Enter() { return Check(cudaSetDevice(index_), "cudaSetDevice"); }

  // A stream that waits for no other.
  absl::StatusOr<UniqueStream> CreateStream();

  bool usable() const { return usable_.load(std::memory_order_relaxed); }
  int index() const { return index_; }
  const std::string& name() const { return name_; }                // "cuda:0"
  const std::string& description() const { return description_; }  // The product, its memory.
  const norm::cuda::DeviceLimits& limits() const { return limits_; }
  // cuStreamWriteValue32, for which the runtime has no name.
  PFN_cuStreamWriteValue32_v11070 write_value() const { return write_value_; }

 private:
  explicit CudaContext(int index);
  absl::Status Initialize();

  const int index_;
  const std::string name_;
  std::string description_;
  norm::cuda::DeviceLimits limits_;
  PFN_cuStreamWriteValue32_v11070 write_value_ = nullptr;
  // Relaxed: a lane that misses the change meets the error itself.
  std::atomic<bool> usable_{true};
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_CONTEXT_H_

#include "server/exec/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/exec/cuda/cuda_context.h"

namespace normd {
namespace {

// The context stays usable after each of these errors.
absl::Status Refused(cudaError_t error) {
  return absl::FailedPreconditionError(absl::StrCat("page-locking: ", TakeError(error)));
}

class CudaPageLocker final : public PageLocker {
 public:
  explicit CudaPageLocker(std::vector<int> used) : used_(std::move(used)) {}

  absl::Status Lock(std::byte* begin, std::size_t bytes, bool writable) override {
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    if (!writable) flags |= cudaHostRegisterReadOnly;
    cudaError_t error = cudaSetDevice(used_.front());
    if (error == cudaSuccess) error = cudaHostRegister(begin, bytes, flags);
    if (error != cudaSuccess) return Refused(error);
    absl::Status status = CheckAddresses(begin);
    if (!status.ok()) Unlock(begin);
    return status;
  }

  void Unlock(std::byte* begin) override {
    if (cudaSetDevice(used_.front()) != cudaSuccess || cudaHostUnregister(begin) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
  }

 private:
  // The lanes give kernels the process's pointer.
  absl::Status CheckAddresses(std::byte* begin) const {
    for (const int device : used_) {
      void* address = nullptr;
      cudaError_t error = cudaSetDevice(device);
      if (error == cudaSuccess) error = cudaHostGetDevicePointer(&address, begin, 0);
      if (error != cudaSuccess) return Refused(error);
      if (address == begin) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("page-locking: device ", device, " has another address for the memory"));
    }
    return absl::OkStatus();
  }

  const std::vector<int> used_;
};

}  // namespace

std::unique_ptr<PageLocker> CreateCudaPageLocker(std::vector<int> used) {
  return std::make_unique<CudaPageLocker>(std::move(used));
}

}  // namespace normd

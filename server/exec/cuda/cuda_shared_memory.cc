#include "server/exec/cuda/cuda_device.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/exec/cuda/cuda_context.h"

namespace normd {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == kDeviceHandleBytes);

class CudaSharedMemory final : public SharedDeviceMemory {
 public:
  CudaSharedMemory(std::vector<int> used, PFN_cuMemGetAddressRange_v3020 address_range)
      : used_(std::move(used)), address_range_(address_range), count_(CudaDeviceCount()) {}

  int device_count() const override { return count_; }
  bool Uses(int device) const override {
    return std::find(used_.begin(), used_.end(), device) != used_.end();
  }

  absl::StatusOr<std::byte*> Open(int device, ConstBytes handle) override {
    cudaIpcMemHandle_t raw{};
    std::memcpy(&raw, handle.data(), sizeof(raw));
    cudaError_t error = cudaSetDevice(device);
    void* data = nullptr;
    if (error == cudaSuccess) {
      error = cudaIpcOpenMemHandle(&data, raw, cudaIpcMemLazyEnablePeerAccess);
    }
    if (error == cudaSuccess) return static_cast<std::byte*>(data);
    const std::string text = TakeError(error);
    if (error == cudaErrorMemoryAllocation || error == cudaErrorMapBufferObjectFailed) {
      return absl::ResourceExhaustedError(
          absl::StrCat("raw_handle: the driver can map no more memory of others: ", text));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("raw_handle: wanted the handle of another, living process's memory on device ",
                     device, ": ", text));
  }

  absl::StatusOr<DeviceAllocation> AllocationOf(int device, const std::byte* address) override {
    cudaPointerAttributes attributes{};
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaPointerGetAttributes(&attributes, address);
    if (error != cudaSuccess) {
      return absl::InvalidArgumentError(absl::StrCat("raw_handle: ", TakeError(error)));
    }
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    const CUresult result = address_range_(&begin, &bytes, reinterpret_cast<CUdeviceptr>(address));
    if (result != CUDA_SUCCESS || attributes.type != cudaMemoryTypeDevice) {
      return absl::InvalidArgumentError(absl::StrCat(
          "raw_handle: wanted memory of a device, driver error ", static_cast<int>(result)));
    }
    return DeviceAllocation{attributes.device, reinterpret_cast<const std::byte*>(begin),
                            static_cast<std::int64_t>(bytes)};
  }

  void Close(int device, std::byte* address) override {
    if (cudaSetDevice(device) != cudaSuccess || cudaIpcCloseMemHandle(address) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
  }

 private:
  const std::vector<int> used_;
  const PFN_cuMemGetAddressRange_v3020 address_range_;
  const int count_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedDeviceMemory>> CreateCudaSharedMemory(std::vector<int> used) {
  const auto address_range = reinterpret_cast<PFN_cuMemGetAddressRange_v3020>(
      FindDriverFunction("cuMemGetAddressRange", 3020));
  if (address_range == nullptr) {
    return absl::FailedPreconditionError("the driver has no cuMemGetAddressRange");
  }
  return std::make_unique<CudaSharedMemory>(std::move(used), address_range);
}

}  // namespace normd

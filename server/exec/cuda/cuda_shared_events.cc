#include "server/exec/cuda/cuda_shared_events.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/exec/cuda/cuda_client_error.h"

namespace normd {
namespace {

static_assert(sizeof(cudaIpcEventHandle_t) == kEventHandleBytes);

class CudaSharedEvent final : public SharedDeviceEvent {
 public:
  CudaSharedEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaSharedEvent() override {
    if (cudaSetDevice(device_) != cudaSuccess || cudaEventDestroy(event_) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
  }

  absl::StatusOr<bool> Reached() override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaSuccess) return true;
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    return absl::InternalError(absl::StrCat("event_handle: ", TakeClientError(error)));
  }

 private:
  const int device_;
  const cudaEvent_t event_;
};

// The driver's handle names a file of /dev/shm, which it maps when it first asks for the event, and
// a place in it. It does not check all of that, nor that the file stays (580.159, CUDA 13).
class CudaSharedEvents final : public SharedDeviceEvents {
 public:
  absl::StatusOr<std::unique_ptr<SharedDeviceEvent>> Open(int device, ConstBytes handle) override {
    cudaIpcEventHandle_t raw{};
    std::memcpy(&raw, handle.data(), sizeof(raw));
    cudaEvent_t event = nullptr;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaIpcOpenEventHandle(&event, raw);
    if (error == cudaSuccess) return std::make_unique<CudaSharedEvent>(device, event);
    const std::string text = TakeClientError(error);
    if (error == cudaErrorMemoryAllocation) {
      return absl::ResourceExhaustedError(
          absl::StrCat("event_handle: the driver can open no more events: ", text));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "event_handle: wanted the handle of another, living process's event on device ", device,
        ": ", text));
  }
};

}  // namespace

std::unique_ptr<SharedDeviceEvents> CreateCudaSharedEvents() {
  return std::make_unique<CudaSharedEvents>();
}

}  // namespace normd

#include "client/cuda_driver.h"

#include <dlfcn.h>

#include <array>

#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

// From the driver's documented interface.
using Result = int;  // CUresult; 0: success.
using Context = void*;

absl::Status Check(Result result, const char* call) {
  if (result == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cuda: ", call, ": driver error ", result));
}

}  // namespace

struct CudaDriver::Calls {
  struct IpcHandle {
    std::array<char, 64> bytes;
  };

  Result (*init)(unsigned) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*retain)(Context*, int) = nullptr;
  Result (*set_current)(Context) = nullptr;
  Result (*allocate)(DeviceAddress*, std::size_t) = nullptr;
  Result (*free)(DeviceAddress) = nullptr;
  Result (*handle)(IpcHandle*, DeviceAddress) = nullptr;
  Result (*copy_in)(DeviceAddress, const void*, std::size_t) = nullptr;
  Result (*copy_out)(void*, DeviceAddress, std::size_t) = nullptr;
  Result (*fill)(DeviceAddress, unsigned char, std::size_t) = nullptr;
  Result (*synchronize)() = nullptr;
};

absl::StatusOr<const CudaDriver*> CudaDriver::Load() {
  struct Loaded {
    CudaDriver driver;
    absl::Status status = driver.LoadCalls();
  };
  // Never unloaded: the driver has threads of its own.
  static const auto* const loaded = new Loaded();
  if (!loaded->status.ok()) return loaded->status;
  return &loaded->driver;
}

absl::Status CudaDriver::LoadCalls() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError("cuda: no driver (libcuda.so.1) is here");
  auto* const calls = new Calls();  // Never freed, like the library.
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& call) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
    if (call == nullptr) missing = name;
  };
  find("cuInit", calls->init);
  find("cuDeviceGet", calls->device_get);
  find("cuDevicePrimaryCtxRetain", calls->retain);
  find("cuCtxSetCurrent", calls->set_current);
  find("cuMemAlloc_v2", calls->allocate);
  find("cuMemFree_v2", calls->free);
  find("cuIpcGetMemHandle", calls->handle);
  find("cuMemcpyHtoD_v2", calls->copy_in);
  find("cuMemcpyDtoH_v2", calls->copy_out);
  find("cuMemsetD8_v2", calls->fill);
  find("cuCtxSynchronize", calls->synchronize);
  calls_ = calls;
  if (missing != nullptr) return absl::UnavailableError(absl::StrCat("cuda: no ", missing));
  return Check(calls_->init(0), "cuInit");
}

absl::Status CudaDriver::Enter(int device) const {
  int handle = 0;
  if (calls_->device_get(&handle, device) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("device: ", device, " is not here"));
  }
  Context context = nullptr;
  // Retained until the process ends.
  absl::Status status = Check(calls_->retain(&context, handle), "cuDevicePrimaryCtxRetain");
  return status.ok() ? Check(calls_->set_current(context), "cuCtxSetCurrent") : status;
}

absl::StatusOr<DeviceAddress> CudaDriver::Allocate(int device, std::size_t bytes) const {
  absl::Status status = Enter(device);
  DeviceAddress address = 0;
  if (status.ok()) status = Check(calls_->allocate(&address, bytes), "cuMemAlloc");
  if (!status.ok()) return status;
  return address;
}

absl::StatusOr<std::string> CudaDriver::HandleOf(int device, DeviceAddress address) const {
  absl::Status status = Enter(device);
  Calls::IpcHandle handle{};
  if (status.ok()) status = Check(calls_->handle(&handle, address), "cuIpcGetMemHandle");
  if (!status.ok()) return status;
  return std::string(handle.bytes.data(), handle.bytes.size());
}

absl::Status CudaDriver::CopyIn(int device, DeviceAddress to,
                                absl::Span<const std::byte> from) const {
  absl::Status status = Enter(device);
  if (status.ok()) status = Check(calls_->copy_in(to, from.data(), from.size()), "cuMemcpyHtoD");
  // A copy from pageable memory may still be in flight.
  return status.ok() ? Check(calls_->synchronize(), "cuCtxSynchronize") : status;
}

absl::Status CudaDriver::CopyOut(int device, absl::Span<std::byte> to, DeviceAddress from) const {
  absl::Status status = Enter(device);
  return status.ok() ? Check(calls_->copy_out(to.data(), from, to.size()), "cuMemcpyDtoH") : status;
}

absl::Status CudaDriver::Fill(int device, DeviceAddress at, std::uint8_t value,
                              std::size_t bytes) const {
  absl::Status status = Enter(device);
  if (status.ok()) status = Check(calls_->fill(at, value, bytes), "cuMemsetD8");
  return status.ok() ? Check(calls_->synchronize(), "cuCtxSynchronize") : status;
}

void CudaDriver::Free(int device, DeviceAddress address) const {
  if (Enter(device).ok()) static_cast<void>(calls_->free(address));
}

}  // namespace normd::client

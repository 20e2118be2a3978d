#include "server/exec/cuda/cuda_context.h"

#include "absl/strings/str_cat.h"
#include "server/exec/kernel_status.h"

namespace normd {
namespace {

// After these the context is lost: every later call on the device returns the same error.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

}  // namespace

std::string TakeError(cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  return absl::StrCat(cudaGetErrorName(error), ", ", cudaGetErrorString(error));
}

void* FindDriverFunction(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found) ==
          cudaSuccess &&
      found == cudaDriverEntryPointSuccess) {
    return function;
  }
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

CudaContext::CudaContext(int index) : index_(index), name_(absl::StrCat("cuda:", index)) {}

absl::StatusOr<std::shared_ptr<CudaContext>> CudaContext::Open(int index) {
  std::shared_ptr<CudaContext> context(new CudaContext(index));
  if (absl::Status status = context->Initialize(); !status.ok()) return status;
  return context;
}

absl::Status CudaContext::Initialize() {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index_) != cudaSuccess) {
    int count = 0;
    static_cast<void>(cudaGetDeviceCount(&count));
    static_cast<void>(cudaGetLastError());
    return absl::FailedPreconditionError(
        absl::StrCat("device: ", name_, " is not here; ", count, " found"));
  }
  description_ = absl::StrCat(properties.name, ", ", properties.totalGlobalMem >> 20, " MiB");
  if (absl::Status status = Enter(); !status.ok()) return status;
  const norm::Status limits = norm::cuda::QueryDeviceLimits(index_, &limits_);
  if (!limits.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name_, ": ", limits.message()));
  }
  write_value_ = reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(
      FindDriverFunction("cuStreamWriteValue32", 11070));
  if (write_value_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name_, ": the driver has no cuStreamWriteValue32"));
}

absl::Status CudaContext::Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (IsSticky(error)) usable_.store(false, std::memory_order_relaxed);
  const std::string text = absl::StrCat(call, ": ", TakeError(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

absl::Status CudaContext::Check(const norm::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // A refused launch may be the first sign of a lost context.
  if (IsSticky(cudaPeekAtLastError())) usable_.store(false, std::memory_order_relaxed);
  static_cast<void>(cudaGetLastError());
  return FromKernel(status);
}

absl::StatusOr<UniqueStream> CudaContext::CreateStream() {
  if (absl::Status status = Enter(); !status.ok()) return status;
  cudaStream_t stream = nullptr;
  absl::Status status =
      Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (!status.ok()) return status;
  return UniqueStream(stream);
}

}  // namespace normd

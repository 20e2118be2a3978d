#include "server/exec/kernel_status.h"

#include "absl/strings/str_cat.h"

namespace normd {

absl::Status FromKernel(const norm::Status& status) {
  switch (status.code()) {
    case norm::StatusCode::kOk: return absl::OkStatus();
    case norm::StatusCode::kInvalidArgument:
      return absl::InternalError(absl::StrCat("kernel refused the batch: ", status.message()));
    case norm::StatusCode::kUnsupported:
      return absl::FailedPreconditionError(absl::StrCat("kernel: ", status.message()));
    case norm::StatusCode::kOutOfMemory:
      return absl::ResourceExhaustedError(absl::StrCat("kernel: ", status.message()));
    case norm::StatusCode::kDeviceError:
      return absl::InternalError(absl::StrCat("device: ", status.message()));
  }
  return absl::InternalError(absl::StrCat("kernel: unknown status: ", status.message()));
}

}  // namespace normd

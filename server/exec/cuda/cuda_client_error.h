// Errors of the driver that a client's handle causes.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_CLIENT_ERROR_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_CLIENT_ERROR_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace normd {

// The name and the text of `error`, which must not be sticky; clears it for the next call of this
// thread.
inline std::string TakeClientError(cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  return absl::StrCat(cudaGetErrorName(error), ", ", cudaGetErrorString(error));
}

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_CLIENT_ERROR_H_

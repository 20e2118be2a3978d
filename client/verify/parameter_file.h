// A model's parameters as a client reads them to check a server. It shares no code with the
// server's own reader but the types' names: a server that reads a file wrongly must not agree with
// its judge.

#ifndef NORMD_CLIENT_VERIFY_PARAMETER_FILE_H_
#define NORMD_CLIENT_VERIFY_PARAMETER_FILE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"

namespace normd::client {

// The float tensors of a safetensors file by name; other types are left out. Errors name the path
// and the tensor: NotFound, or InvalidArgument for a file that contradicts itself.
// Source: https://github.com/huggingface/safetensors, "Format".
absl::StatusOr<std::map<std::string, Tensor>> ReadParameterFile(const std::string& path);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_PARAMETER_FILE_H_

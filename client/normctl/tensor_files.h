// The files of a call's inputs and outputs, as a command line names them.

#ifndef NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_
#define NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/tensor/npy.h"
#include "client/tensor/tensor.h"

namespace normd::client {

// "FILE" or "NAME=FILE". A path that has a '=' in its first part is written "./a=b.npy".
struct TensorPath {
  std::string name;  // May be empty.
  std::string path;
};
TensorPath ParseTensorPath(absl::string_view text);

// An input of a call, open.
struct InputFile {
  std::string name;
  NpyReader file;

  TensorSpec spec() const { return {name, file.dtype(), file.shape()}; }
};

// Opens them in this order. InvalidArgument for a second one without a name; where any has a name,
// one without is kFirstInput.
absl::StatusOr<std::vector<InputFile>> OpenInputs(std::vector<TensorPath> paths);

// Where each of the outputs goes, in their order; empty: nowhere. A path without a name is for an
// only output. InvalidArgument names the output that is not there, or the names of those that are.
absl::StatusOr<std::vector<std::string>> OutputPaths(absl::Span<const TensorSpec> outputs,
                                                     absl::Span<const TensorPath> given);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_

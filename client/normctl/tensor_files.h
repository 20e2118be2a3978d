// The files of a call's inputs and outputs, as a command line names them.

#ifndef NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_
#define NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/request.h"
#include "client/tensor/npy.h"
#include "client/tensor/tensor.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// "FILE" or "NAME=FILE". A path with a '=' in its first part is written "./a=b.npy".
struct TensorPath {
  std::string name;  // May be empty.
  std::string path;
};
TensorPath ParseTensorPath(absl::string_view text);

// An open input file.
struct InputFile {
  std::string name;
  NpyReader file;

  TensorSpec spec() const { return {name, file.dtype(), file.shape()}; }
};

// Opens the files in this order. InvalidArgument for a second one without a name; if any has a
// name, one without is kFirstInput.
absl::StatusOr<std::vector<InputFile>> OpenInputs(std::vector<TensorPath> paths);

// The path of each output, in their order; empty: none. A path without a name is for an only
// output. InvalidArgument names the missing output, or the names of the existing ones.
absl::StatusOr<std::vector<std::string>> OutputPaths(absl::Span<const TensorSpec> outputs,
                                                     absl::Span<const TensorPath> given);

struct SharedMemoryServer {
  std::string address;  // See SharedRegion::Create.
  std::string token;    // Empty: none.
};

// Reads the files into a new region, which the request's inputs then name, with room for its
// outputs: those of request.outputs, or all default ones. The server shares the region as long as
// the request or its response exists. Errors: SharedRegion::Create's, OutputSpecs' and those of
// reading.
absl::Status ShareFiles(const SharedMemoryServer& server, const v1::ModelInfo& model,
                        const std::vector<InputFile>& inputs, NormalizeRequest& request);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_TENSOR_FILES_H_

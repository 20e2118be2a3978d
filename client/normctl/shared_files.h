// Tensors from .npy files in memory shared with a server on this machine.

#ifndef NORMD_CLIENT_NORMCTL_SHARED_FILES_H_
#define NORMD_CLIENT_NORMCTL_SHARED_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/normctl/tensor_files.h"
#include "client/request.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

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

#endif  // NORMD_CLIENT_NORMCTL_SHARED_FILES_H_

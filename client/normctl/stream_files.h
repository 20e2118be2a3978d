// Tensors from .npy files through a stream into other files: all may be larger than memory.

#ifndef NORMD_CLIENT_NORMCTL_STREAM_FILES_H_
#define NORMD_CLIENT_NORMCTL_STREAM_FILES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/normctl/tensor_files.h"
#include "client/tensor/npy.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"

namespace normd::client {

// Chooses the outputs' files, once the outputs are known: as OutputPaths.
using ChoosePaths =
    std::function<absl::StatusOr<std::vector<std::string>>(absl::Span<const TensorSpec> outputs)>;

// Normalizes `inputs` according to `request`; the files give names, types and shapes. A regular
// output file appears under its name when the whole result is there, and not at all after an error;
// it may be an input file. An output without a path is dropped.
absl::StatusOr<StreamResult> StreamFiles(Client& client, StreamRequest request,
                                         absl::Span<const InputFile> inputs,
                                         const ChoosePaths& choose_paths);

// Compares the outputs, in the reference's order, with the reference, some samples at a time.
// `wanted`: the outputs that the request named.
absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference,
                                        absl::Span<const InputFile> inputs,
                                        absl::Span<const InputFile> outputs,
                                        absl::Span<const std::string> wanted);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_STREAM_FILES_H_

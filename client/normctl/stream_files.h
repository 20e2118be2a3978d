// Tensors from .npy files through a stream into others: all may be larger than memory.

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

// Says where each of the outputs goes, once they are known: as OutputPaths.
using ChoosePaths =
    std::function<absl::StatusOr<std::vector<std::string>>(absl::Span<const TensorSpec> outputs)>;

// Normalizes `inputs` as `request` says; names, types and shapes are taken from the files. A
// regular output file appears under its name when the whole result is there, and not at all after
// an error; it may be an input's. An output without a path is dropped.
absl::StatusOr<StreamResult> StreamFiles(Client& client, StreamRequest request,
                                         absl::Span<const InputFile> inputs,
                                         const ChoosePaths& choose_paths);

// Holds the outputs, in the reference's order, against it, some samples at a time. `wanted`: those
// that the request named.
absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference,
                                        absl::Span<const InputFile> inputs,
                                        absl::Span<const InputFile> outputs,
                                        absl::Span<const std::string> wanted);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_STREAM_FILES_H_

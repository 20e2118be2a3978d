// Tensors from .npy files through a stream into another: all may be larger than memory.

#ifndef NORMD_CLIENT_NORMCTL_STREAM_FILES_H_
#define NORMD_CLIENT_NORMCTL_STREAM_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/tensor/npy.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"

namespace normd::client {

struct InputFiles {
  const NpyReader* x = nullptr;
  const NpyReader* y = nullptr;  // May be null.
};

// Normalizes `input` as `request` says; types and shapes are taken from the files. A regular
// output file appears under its name when it is whole, and not at all after an error; it may be the
// input's. An empty `output_path` drops the result.
absl::StatusOr<StreamResult> StreamFile(Client& client, StreamRequest request,
                                        const InputFiles& input, const std::string& output_path);

// Holds the output against the reference, some samples at a time.
absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference, const InputFiles& input,
                                        const NpyReader& output);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_STREAM_FILES_H_

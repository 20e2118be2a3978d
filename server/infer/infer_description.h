// Requests of the Open Inference Protocol as the accept path's descriptions, whatever brought them.

#ifndef NORMD_SERVER_INFER_INFER_DESCRIPTION_H_
#define NORMD_SERVER_INFER_INFER_DESCRIPTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/accept/description.h"
#include "server/model/registry.h"
#include "wire/infer_request.h"

namespace normd {

// The version that a request names: digits, or empty for the model's choice (0). InvalidArgument,
// with `field`, for anything else.
absl::StatusOr<std::int64_t> VersionOf(absl::string_view field, absl::string_view text);
// The same, or the version that a version_alias of the model names; NotFound for an unknown alias.
absl::StatusOr<std::int64_t> FindVersion(const ModelRegistry& registry, absl::string_view model,
                                         absl::string_view field, absl::string_view text);

// A request, whose data stays where the view has it. Its parameters:
//   priority  1: high, 2: normal, 3: low; 0: normal
//   timeout   microseconds that it may wait for a lane; 0: no limit
// Others are ignored, except those that ask for something that the server does not have. A
// tensor's:
//   shared_memory_region, shared_memory_offset, shared_memory_byte_size: see RegionReference
absl::StatusOr<RequestDescription> DescribeInferRequest(InferRequestView&& view);

}  // namespace normd

#endif  // NORMD_SERVER_INFER_INFER_DESCRIPTION_H_

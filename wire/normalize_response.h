// NormalizeResponse on the wire, without a copy of the tensors. The same holds as for requests
// (normalize_request.h).

#ifndef NORMD_WIRE_NORMALIZE_RESPONSE_H_
#define NORMD_WIRE_NORMALIZE_RESPONSE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/tensor_message.h"

namespace normd {

// A NormalizeResponse without its tensors' bytes.
struct NormalizeResponseHead {
  absl::string_view model;
  std::int64_t version = 0;
  std::array<std::int64_t, 6> stage_ns{};  // In the order of StageTimes' fields.
  std::int64_t batch_id = 0;
  std::int64_t batch_requests = 0;
  std::int64_t batch_bytes = 0;
  absl::string_view lane;
  absl::Span<const TensorHeader> outputs;
};

// The message, with its outputs' bytes, is identical to what the generated class serializes.
// Requires that it stays under 2 GiB.
EncodedMessage EncodeNormalizeResponse(const NormalizeResponseHead& head);

struct NormalizeResponseView {
  std::string model;
  std::int64_t version = 0;
  v1::StageTimes stages;
  v1::BatchInfo batch;
  ReceivedTensors outputs;  // At most kMaxTensors; may be none.
};

// Reads a NormalizeResponse as DecodeNormalizeRequest reads a request, with the same caps. Does not
// check values.
absl::StatusOr<NormalizeResponseView> DecodeNormalizeResponse(absl::Span<const ConstBytes> slices);

}  // namespace normd

#endif  // NORMD_WIRE_NORMALIZE_RESPONSE_H_

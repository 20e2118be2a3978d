// The wire form of Normalize's messages, without a copy of the tensor: the request is read over the
// slices that the transport received, the response is a short head and then the output's own
// memory. proto/normd/v1/norm_service.proto stays the specification; the generated messages and
// this codec accept and mean the same.
//
// It knows no transport and no model, so that tests and the fuzzer reach every line of it.

#ifndef NORMD_SERVER_RPC_CODEC_H_
#define NORMD_SERVER_RPC_CODEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/shape.h"
#include "normd/v1/model_config.pb.h"
#include "normd/v1/norm_service.pb.h"

namespace normd {

// The longest `model` or tensor name that is read at all.
inline constexpr int kMaxNameBytes = 128;

// One Tensor message. `data` are views of the slices, in order, of any split and alignment.
struct TensorView {
  std::string name;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;  // As sent: may be no enumerator.
  absl::InlinedVector<std::int64_t, 6> shape;      // As sent, at most kMaxRank.
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
};

struct NormalizeRequestView {
  std::string model;
  std::int64_t version = 0;
  absl::InlinedVector<TensorView, kMaxInputs> inputs;   // At least one, at most kMaxInputs.
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;     // As sent: may be no enumerator.
  std::int64_t queue_timeout_ns = 0;                    // As sent: may be negative.
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;  // As sent: may be no enumerator.
};

// Reads a NormalizeRequest from its `slices`; the views live as long as those. Fields may come in
// any order, be split anywhere, and be repeated (the last one counts, packed and unpacked shapes
// add up); unknown fields are skipped. The sizes of what is allocated are bounded by this header's
// caps, not by what the message claims; only the list of views grows, by one for each slice.
//
// InvalidArgument for a message that protobuf would not parse ("request: malformed protobuf ..."),
// for more dimensions than kMaxRank, a name over kMaxNameBytes, no inputs and more than kMaxInputs.
// Values are not judged here. Thread-safe, as it has no state.
absl::StatusOr<NormalizeRequestView> DecodeNormalizeRequest(absl::Span<const ConstBytes> slices);

// What a NormalizeResponse says, but its tensor's bytes.
struct NormalizeResponseHead {
  absl::string_view model;
  std::int64_t version = 0;
  std::array<std::int64_t, 6> stage_ns{};  // In the order of StageTimes' fields.
  std::int64_t batch_id = 0;
  std::int64_t batch_requests = 0;
  std::int64_t batch_bytes = 0;
  absl::string_view lane;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  absl::Span<const std::int64_t> shape;  // No dimension is negative.
  std::int64_t data_bytes = 0;           // The size of the one output; may be 0.
};

// The response up to the output's bytes: `head` followed by data_bytes of them is the message, byte
// for byte as the generated class serializes it. Requires that the message stays under 2 GiB.
std::string EncodeNormalizeResponseHead(const NormalizeResponseHead& head);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CODEC_H_

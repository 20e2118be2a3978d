// NormalizeRequest on the wire, without a copy of the tensors. A request is read from the slices
// that the transport received, and written as a few short parts between the tensors' own memory.
// proto/normd/v1/norm_service.proto stays the specification; the generated messages and this code
// accept and mean the same.
//
// It knows no transport and no model, so tests and the fuzzer reach every line of it.

#ifndef NORMD_WIRE_NORMALIZE_REQUEST_H_
#define NORMD_WIRE_NORMALIZE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/tensor_message.h"

namespace normd {

// A received WantedOutput message.
struct ReceivedOutput {
  std::string name;
  std::optional<ReceivedSharedPart> shared_memory;
};

struct NormalizeRequestView {
  std::string model;
  std::int64_t version = 0;
  ReceivedTensors inputs;                               // At least one, at most kMaxTensors.
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;     // As sent: may be no enumerator.
  std::int64_t queue_timeout_ns = 0;                    // As sent: may be negative.
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;  // As sent: may be no enumerator.
  // The wanted outputs, at most kMaxTensors. None: the model's own outputs.
  absl::InlinedVector<ReceivedOutput, 1> outputs;
  bool unnamed_outputs = false;
};

// Reads a NormalizeRequest from its `slices`; the views live as long as those. Fields may come in
// any order, be split anywhere, and be repeated: the last one counts, packed and unpacked shapes
// add up. Unknown fields are skipped. The caps of tensor_message.h bound every allocation, whatever
// the message claims; only the list of views grows, by one for each slice.
//
// InvalidArgument for a message that protobuf would not parse ("request: malformed protobuf ..."),
// for more dimensions than kMaxRank, a name over kMaxNameBytes, no inputs, and more inputs or
// outputs than kMaxTensors. Does not check values. Thread-safe: it has no state.
absl::StatusOr<NormalizeRequestView> DecodeNormalizeRequest(absl::Span<const ConstBytes> slices);

// A NormalizeRequest without its tensors' bytes; norm_service.proto says what each field means.
struct NormalizeRequestHead {
  absl::string_view model;
  std::int64_t version = 0;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  std::int64_t queue_timeout_ns = 0;
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
  absl::Span<const TensorHeader> inputs;
  absl::Span<const WantedOutputHeader> outputs;
};

// InvalidArgument when the message exceeds 2 GiB, protobuf's limit.
absl::StatusOr<EncodedMessage> EncodeNormalizeRequest(const NormalizeRequestHead& head);

}  // namespace normd

#endif  // NORMD_WIRE_NORMALIZE_REQUEST_H_

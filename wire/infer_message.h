// What ModelInferRequest and ModelInferResponse of the Open Inference Protocol have in common when
// they are sent: tensors that are described in one list and whose bytes end the message.
// proto/inference/grpc_service.proto is the specification; the generated classes and this code
// accept and mean the same.

#ifndef NORMD_WIRE_INFER_MESSAGE_H_
#define NORMD_WIRE_INFER_MESSAGE_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "wire/message_writer.h"
#include "wire/tensor_message.h"

namespace normd {

// The longest id of a request that is read at all, and so the longest that a response repeats.
inline constexpr int kMaxInferIdBytes = 1024;

// A tensor to send, but for its data.
struct InferTensorHeader {
  absl::string_view name;
  absl::string_view datatype;
  absl::Span<const std::int64_t> shape;  // No dimension is negative.
  std::int64_t data_bytes = 0;           // May be 0.
  SharedPartHeader shared_memory = {};   // The parameters shared_memory_*.
};

// What a message says, but its tensors' bytes.
struct InferMessageHead {
  absl::string_view model;
  absl::string_view version;  // In digits, or empty.
  absl::string_view id;
  std::int64_t priority = 0;  // The parameters of these names; 0: left out.
  std::int64_t timeout_us = 0;
  bool final_response = false;  // The parameter triton_final_response; false: left out.
  absl::Span<const InferTensorHeader> tensors;
  absl::Span<const WantedOutputHeader> wanted_outputs;  // Of a request.
};

enum class InferMessageKind {
  kRequest,
  kResponse,
  kStreamResponse,  // A ModelStreamInferResponse around a response.
};

// A message whose raw contents are its tensors' bytes, each in its turn. Requires that it stays
// under 2 GiB.
EncodedMessage EncodeInferMessage(InferMessageKind kind, const InferMessageHead& head);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_MESSAGE_H_

// The common part of ModelInferRequest and ModelInferResponse of the Open Inference Protocol, as
// they are sent: one list describes the tensors, and their bytes end the message.
// proto/inference/grpc_service.proto is the specification; the generated classes and this code
// accept and mean the same.

#ifndef NORMD_WIRE_INFER_MESSAGE_H_
#define NORMD_WIRE_INFER_MESSAGE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "wire/message_writer.h"
#include "wire/tensor_message.h"

namespace normd {

// The longest request id that is read, and so the longest that a response repeats.
inline constexpr int kMaxInferIdBytes = 1024;

// A tensor to send, without its data.
struct InferTensorHeader {
  absl::string_view name;
  absl::string_view datatype;
  absl::Span<const std::int64_t> shape;  // No dimension is negative.
  std::int64_t data_bytes = 0;           // May be 0.
  SharedPartHeader shared_memory = {};   // The parameters shared_memory_*.
};

// The contents of a message, without its tensors' bytes.
struct InferMessageHead {
  absl::string_view model;
  absl::string_view version;  // In digits, or empty.
  absl::string_view id;
  std::int64_t priority = 0;  // The parameters of these names; 0: left out.
  std::int64_t timeout_us = 0;
  bool final_response = false;  // The parameter triton_final_response; false: left out.
  absl::Span<const InferTensorHeader> tensors;
  absl::Span<const WantedOutputHeader> wanted_outputs;  // Only in a request.
};

enum class InferMessageKind {
  kRequest,
  kResponse,
  kStreamResponse,  // A ModelStreamInferResponse around a response.
};

// Encodes a message whose raw contents are its tensors' bytes, in order. Requires that it stays
// under 2 GiB.
EncodedMessage EncodeInferMessage(InferMessageKind kind, const InferMessageHead& head);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_MESSAGE_H_

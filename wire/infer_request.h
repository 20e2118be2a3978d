// ModelInferRequest on the wire, without a copy of the tensors. It knows no transport and no model.

#ifndef NORMD_WIRE_INFER_REQUEST_H_
#define NORMD_WIRE_INFER_REQUEST_H_

#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "wire/infer_message.h"
#include "wire/infer_parameter.h"
#include "wire/infer_tensor.h"

namespace normd {

// An output that a request asks for by name.
struct ReceivedInferOutput {
  std::string name;
  ReceivedParameter classification;
  std::unique_ptr<ReceivedSharedMemory> shared_memory;  // Null: none.
};

struct InferRequestView {
  std::string model;
  std::string version;  // As sent: may be no number.
  std::string id;
  ReceivedParameter priority;  // The parameters of these names. Others are read and dropped.
  ReceivedParameter timeout;
  ReceivedInferTensors inputs;  // At least one, at most kMaxTensors, each with its bytes.
  absl::InlinedVector<ReceivedInferOutput, 1> outputs;  // At most kMaxTensors; none: all.
};

// Reads a ModelInferRequest from its `slices`, as DecodeNormalizeRequest does. Packed elements of
// `contents` become views, like raw contents.
//
// InvalidArgument for a message that protobuf would not parse, for no inputs, and for sizes over
// the caps of infer_message.h and tensor_message.h. InvalidArgument too unless there is one raw
// content for each input outside shared memory, for raw contents beside an input's own contents,
// and for contents in several fields of one input. Does not check values. Thread-safe: it has no
// state.
absl::StatusOr<InferRequestView> DecodeInferRequest(absl::Span<const ConstBytes> slices);

// The id of a ModelInferRequest, even of one that DecodeInferRequest refuses; empty if no id can be
// read.
std::string InferRequestId(absl::Span<const ConstBytes> slices);

// InvalidArgument when the message exceeds 2 GiB, protobuf's limit.
absl::StatusOr<EncodedMessage> EncodeInferRequest(const InferMessageHead& head);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_REQUEST_H_

// What ModelInferRequest and ModelInferResponse of the Open Inference Protocol have in common on
// the wire: tensors that are described in one list and whose bytes end the message.
// proto/inference/grpc_service.proto is the specification; the generated classes and this code
// accept and mean the same.

#ifndef NORMD_WIRE_INFER_MESSAGE_H_
#define NORMD_WIRE_INFER_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "wire/message_reader.h"
#include "wire/message_writer.h"
#include "wire/tensor_message.h"

namespace normd {

// The longest id of a request that is read at all, and so the longest that a response repeats.
inline constexpr int kMaxInferIdBytes = 1024;
// The longest name, and the longest text, of a parameter that is read at all.
inline constexpr int kMaxInferParameterBytes = 1024;

// The fields of an InferTensorContents.
enum class InferContents {
  kNone,
  kBool,
  kInt,
  kInt64,
  kUint,
  kUint64,
  kFp32,
  kFp64,
  kBytes,
};
// "fp32_contents"; empty for kNone.
absl::string_view Name(InferContents contents);

// An InferParameter.
struct ReceivedParameter {
  enum class Kind { kNone, kBool, kInt, kUint, kDouble, kText };
  Kind kind = Kind::kNone;
  // Of kBool, kInt and kUint; of a kUint of 2^63 and more, the most that there is.
  std::int64_t number = 0;
  std::string text;  // Of kText.

  bool IsNumber() const { return kind == Kind::kInt || kind == Kind::kUint; }
};

// The parameters of a tensor that begin with "shared_memory_".
struct ReceivedSharedMemory {
  ReceivedParameter region;
  ReceivedParameter offset;
  ReceivedParameter byte_size;
  std::string unknown;  // One that is none of these; empty: none.
};

// A tensor that was received. `data` are views of the slices, in order, of any split and alignment,
// or of `owned`.
struct ReceivedInferTensor {
  std::string name;
  std::string datatype;                        // As sent: may name no type.
  absl::InlinedVector<std::int64_t, 6> shape;  // As sent, at most kMaxRank.
  // Which field of `contents` has elements; kNone also for raw contents. Elements of other fields
  // than fp32_contents and fp64_contents are checked for their form and dropped.
  InferContents contents = InferContents::kNone;
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
  // The elements, where they were not sent packed in one field, as every proto3 client sends them.
  // shared: whoever keeps the views keeps it.
  std::shared_ptr<std::string> owned;
  std::unique_ptr<ReceivedSharedMemory> shared_memory;  // Null: none, as with most.
};
using ReceivedInferTensors = absl::InlinedVector<ReceivedInferTensor, 2>;

// Reads the next element of a `parameters` map.
absl::Status ReadParameter(MessageReader& reader, absl::string_view field, std::string& key,
                           ReceivedParameter& value);

// The same of a tensor, whose key is looked at: takes what is about shared memory.
absl::Status ReadTensorParameter(MessageReader& reader, std::string& key, ReceivedParameter& value,
                                 std::unique_ptr<ReceivedSharedMemory>& shared_memory);

// Reads the next element of the repeated field `list` (inputs or outputs) and appends it.
// InvalidArgument for more than kMaxTensors, for more dimensions than kMaxRank and for a name or
// datatype over kMaxNameBytes.
absl::Status ReadInferTensor(MessageReader& reader, absl::string_view list,
                             ReceivedInferTensors& tensors);

// The bytes of one tensor in a list beside the tensors'.
struct ReceivedRawContents {
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
};
using ReceivedRawList = absl::InlinedVector<ReceivedRawContents, 2>;

// Reads the next element of the repeated field `field`; at most kMaxTensors.
absl::Status ReadRawContents(MessageReader& reader, absl::string_view field,
                             ReceivedRawList& contents);

// Which tensors raw contents are for.
enum class RawContentsFor {
  kAll,
  kOutsideSharedMemory,  // As clients send them: those in shared memory have none.
};

// Gives the tensors their bytes. InvalidArgument when one has contents of its own beside them and
// when there are not as many as tensors that they are for; `field` and `list` are what messages
// call them.
absl::Status TakeRawContents(RawContentsFor whose, absl::string_view field,
                             ReceivedRawList contents, absl::string_view list,
                             ReceivedInferTensors& tensors);

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

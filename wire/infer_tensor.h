// Received tensors of ModelInferRequest and ModelInferResponse: one list describes them, and their
// bytes lie in typed fields of their own or, raw, in a list beside it.

#ifndef NORMD_WIRE_INFER_TENSOR_H_
#define NORMD_WIRE_INFER_TENSOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "wire/infer_parameter.h"
#include "wire/message_reader.h"
#include "wire/tensor_message.h"

namespace normd {

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

// A received tensor. `data` are views of the slices, in order, of any split and alignment, or of
// `owned`.
struct ReceivedInferTensor {
  std::string name;
  std::string datatype;  // As sent: may name no type.
  ReceivedShape shape;
  // The field of `contents` that has elements; kNone also for raw contents. The elements of fields
  // other than fp32_contents and fp64_contents are checked for their form and dropped.
  InferContents contents = InferContents::kNone;
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
  // The elements, if they did not come packed in one field, as every proto3 client sends them.
  // shared: every holder of the views keeps it.
  std::shared_ptr<std::string> owned;
  std::unique_ptr<ReceivedSharedMemory> shared_memory;  // Null: none, as with most.
};
using ReceivedInferTensors = absl::InlinedVector<ReceivedInferTensor, 2>;

// Reads the next element of the repeated field `list` (inputs or outputs) and appends it.
// InvalidArgument for more than kMaxTensors, for more dimensions than kMaxRank and for a name or
// datatype over kMaxNameBytes.
absl::Status ReadInferTensor(MessageReader& reader, absl::string_view list,
                             ReceivedInferTensors& tensors);

// The bytes of one tensor, from the list beside the tensors.
struct ReceivedRawContents {
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
};
using ReceivedRawList = absl::InlinedVector<ReceivedRawContents, 2>;

// Reads the next element of the repeated field `field`; at most kMaxTensors.
absl::Status ReadRawContents(MessageReader& reader, absl::string_view field,
                             ReceivedRawList& contents);

// The tensors that have raw contents.
enum class RawContentsFor {
  kAll,
  kOutsideSharedMemory,  // As clients send them: tensors in shared memory have none.
};

// Gives the tensors their bytes. InvalidArgument when a tensor has contents of its own beside them,
// and when their number differs from that of the tensors they are for. `field` and `list` are their
// names in messages.
absl::Status TakeRawContents(RawContentsFor whose, absl::string_view field,
                             ReceivedRawList contents, absl::string_view list,
                             ReceivedInferTensors& tensors);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_TENSOR_H_

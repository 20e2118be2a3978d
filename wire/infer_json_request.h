// The body of an inference request over HTTP: a JSON text, or a JSON text with binary tensors
// behind it. Triton's protocol and its "binary tensor data" extension are the specification.

#ifndef NORMD_WIRE_INFER_JSON_REQUEST_H_
#define NORMD_WIRE_INFER_JSON_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "wire/infer_request.h"

namespace normd {

// Bytes that whoever reads a body provides behind it. The parser reads them; unless the first byte
// behind the JSON text is 0, it copies the text.
inline constexpr std::size_t kJsonPadding = 64;

// Asked before so many bytes are allocated; an error ends the work.
using TakeMemory = absl::FunctionRef<absl::Status(std::int64_t bytes)>;

struct InferJsonBody {
  ConstBytes bytes;  // In one piece, with kJsonPadding readable bytes behind it.
  // The header Inference-Header-Content-Length: the bytes of the JSON text. Null: all of them.
  std::optional<std::int64_t> json_bytes;
};

struct InferJsonRequest {
  // `model` and `version` are empty: the URL names them. Binary tensors are views of the body,
  // others of ReceivedInferTensor::owned.
  InferRequestView view;
  // For each of view.outputs, whether it is wanted as a binary tensor; when the request names none,
  // `all_binary` says so of all outputs.
  absl::InlinedVector<bool, 1> binary;
  bool all_binary = false;
  // What the parser took of what `take` granted, and has freed.
  std::int64_t freed_bytes = 0;
};

// Decodes the body. Elements of `data` are rounded once, from decimal to the tensor's type. INT8,
// INT64 and UINT8 (the bits of a float8) take integers alone. `data` is flat, or nested exactly as
// `shape` says. Keys that mean nothing here are ignored.
//
// InvalidArgument, which names the field, for a text that is not JSON (NaN and Infinity are not),
// keys of this message that come twice, elements that the type cannot hold, another number of
// elements than `shape` has, both or too much of `data` and binary data, and for sizes over the
// caps of infer_message.h and tensor_message.h; the errors of `take`. The elements of a tensor with
// an unknown datatype or an impossible shape are checked for their form and dropped, as
// DecodeInferRequest does. Thread-safe: it has no state.
absl::StatusOr<InferJsonRequest> DecodeInferJson(const InferJsonBody& body, TakeMemory take);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_JSON_REQUEST_H_

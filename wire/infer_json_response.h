// The body of an inference response over HTTP, and of an error.

#ifndef NORMD_WIRE_INFER_JSON_RESPONSE_H_
#define NORMD_WIRE_INFER_JSON_RESPONSE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "kernels/types.h"
#include "wire/infer_json_request.h"
#include "wire/tensor_message.h"

namespace normd {

struct InferJsonOutput {
  absl::string_view name = {};
  norm::DType dtype = norm::DType::kFloat32;
  absl::Span<const std::int64_t> shape = {};
  ConstBytes data = {};                 // Any alignment; ignored in shared memory.
  SharedPartHeader shared_memory = {};  // The parameters shared_memory_*.
  bool binary = false;                  // Only the size is written: the data follows the text.
};

struct InferJsonResponse {
  absl::string_view model = {};
  absl::string_view version = {};
  absl::string_view id = {};  // Left out if empty.
  absl::Span<const InferJsonOutput> outputs = {};
};

// The response's JSON text. The data of the binary outputs outside shared memory follows it, in
// order; the header Inference-Header-Content-Length then has the text's size. Elements are flat,
// each the shortest number that reads back as the same value of its type.
//
// InvalidArgument for a NaN or an infinity outside a binary output: JSON has no such number. The
// errors of `take`.
absl::StatusOr<std::string> EncodeInferJson(const InferJsonResponse& response, TakeMemory take);

// {"error": "..."}; bytes that are not UTF-8 become U+FFFD.
std::string EncodeJsonError(absl::string_view message);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_JSON_RESPONSE_H_

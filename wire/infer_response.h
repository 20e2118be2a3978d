// ModelInferResponse on the wire, as clients read it, without a copy of the tensors.

#ifndef NORMD_WIRE_INFER_RESPONSE_H_
#define NORMD_WIRE_INFER_RESPONSE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "wire/infer_tensor.h"

namespace normd {

struct InferResponseView {
  std::string model;
  std::string version;
  std::string id;
  ReceivedInferTensors outputs;  // At most kMaxTensors; may be none.
};

// As DecodeInferRequest, with the same caps.
absl::StatusOr<InferResponseView> DecodeInferResponse(absl::Span<const ConstBytes> slices);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_RESPONSE_H_

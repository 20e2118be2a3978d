// What a request says and what its response says, whatever the protocol: what a front end decodes
// to, and what it encodes from.

#ifndef NORMD_SERVER_ACCEPT_DESCRIPTION_H_
#define NORMD_SERVER_ACCEPT_DESCRIPTION_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/buffer.h"
#include "base/shape.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/batching/priority.h"
#include "server/batching/request.h"

namespace normd {

// One tensor of a request, as sent: nothing of it has been checked.
struct InputDescription {
  std::string name;  // May be empty where the model has one input.
  // InvalidArgument in the protocol's own words ("dtype: 99, wanted ...") for what names no type.
  absl::StatusOr<norm::DType> dtype = norm::DType::kFloat32;
  absl::InlinedVector<std::int64_t, 6> shape;
  ByteViews data;  // `data_bytes` in all.
  std::int64_t data_bytes = 0;
};

// A request as sent. AcceptRequest judges every field, so that each front end refuses the same
// requests in the same order and words; a decoder refuses only what it cannot read.
struct RequestDescription {
  std::string model;
  std::int64_t version = 0;  // 0: the highest that is loaded.
  absl::InlinedVector<InputDescription, 2> inputs;
  // The inputs' data comes later, in chunks; their descriptions have none.
  bool in_chunks = false;
  // InvalidArgument in the protocol's own words for what names no priority.
  absl::StatusOr<Priority> priority = Priority::kNormal;
  std::int64_t queue_timeout_ns = 0;  // 0: none.
  // The vocabulary of model configs, which protocols share; may be no enumerator.
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
};

// One tensor of a response.
struct OutputDescription {
  norm::DType dtype = norm::DType::kFloat32;
  absl::Span<const std::int64_t> shape;
  Buffer data;
};

// A response. Borrows from its call.
struct ResponseDescription {
  absl::string_view model;
  std::int64_t version = 0;
  StageTimes stages;
  const BatchInfo* batch = nullptr;
  OutputDescription output;
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_DESCRIPTION_H_

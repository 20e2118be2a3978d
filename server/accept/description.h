// Requests and responses in any protocol: front ends decode to these, and encode from them.

#ifndef NORMD_SERVER_ACCEPT_DESCRIPTION_H_
#define NORMD_SERVER_ACCEPT_DESCRIPTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "kernels/types.h"
#include "operations/operation.h"
#include "server/batching/priority.h"
#include "server/batching/request.h"

namespace normd {

// A part of a region that a request names, as sent and unchecked.
struct RegionReference {
  std::string region;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// One tensor of a request, as sent and unchecked.
struct InputDescription {
  std::string name;  // May be empty if the model has one input.
  // InvalidArgument in the protocol's own words for an unknown type ("dtype: 99 is unknown").
  absl::StatusOr<norm::DType> dtype = norm::DType::kFloat32;
  // The protocol's name of a type: the refusal of `dtype` then lists those that the model takes.
  std::string (*name_of)(norm::DType) = nullptr;
  absl::InlinedVector<std::int64_t, 6> shape;
  InputMemory data;  // `data_bytes` in all.
  std::int64_t data_bytes = 0;
  absl::string_view data_field = "data";  // The protocol's name for it.
  // The bytes' place instead of `data`.
  std::optional<RegionReference> region = std::nullopt;
};

// An output that the client names.
struct WantedOutput {
  std::string name;     // May be empty if the model has one output.
  OutputMemory memory;  // Its place; none: it comes back in the server's memory.
  // Its place instead: from the first of these bytes on.
  std::optional<RegionReference> region = std::nullopt;
};

// A request as sent. AcceptRequest judges every field, so that each front end refuses the same
// requests in the same order and words; a decoder refuses only what it cannot read.
struct RequestDescription {
  std::string model;
  std::int64_t version = 0;   // 0: the model's choice.
  std::string version_alias;  // Instead of a number; empty: none.
  absl::InlinedVector<InputDescription, 2> inputs;
  absl::InlinedVector<WantedOutput, 1> outputs;
  // If outputs are named above, the response has no others.
  bool only_named_outputs = false;
  // The inputs' data comes later, in chunks; their descriptions have none.
  bool in_chunks = false;
  // InvalidArgument in the protocol's own words for an unknown priority.
  absl::StatusOr<Priority> priority = Priority::kNormal;
  std::int64_t queue_timeout_ns = 0;  // 0: none.
  TimeoutField timeout_field = TimeoutField::kQueueTimeoutNs;
  AskedOptions options;
  // The request's own id, for protocols whose responses repeat it. Of any text.
  std::string id;
  // Keeps the decoder's own memory that `inputs` show; null if they show the message alone. shared:
  // as Request::input_owner.
  std::shared_ptr<void> owner;
};

// One tensor of a response.
struct OutputDescription {
  absl::string_view name;
  norm::DType dtype = norm::DType::kFloat32;
  absl::Span<const std::int64_t> shape;
  std::int64_t bytes = 0;
  Buffer data;  // Empty if the request named the memory.
  // The place that the request named; null: `data`. Borrows.
  const RegionReference* region = nullptr;
};

// A response. Borrows from its call.
struct ResponseDescription {
  absl::string_view model;
  std::int64_t version = 0;
  absl::string_view id;  // As in RequestDescription.
  StageTimes stages;
  const BatchInfo* batch = nullptr;
  bool outputs_by_name = false;  // The request wants those that it names.
  absl::InlinedVector<OutputDescription, kInlinedOutputs> outputs;
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_DESCRIPTION_H_

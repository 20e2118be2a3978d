#include "client/request.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "grpcpp/support/slice.h"
#include "wire/grpc_slices.h"
#include "wire/normalize_request.h"

namespace normd::client {

absl::StatusOr<EncodedRequest> EncodedRequest::Create(const NormalizeRequest& request) {
  absl::InlinedVector<TensorHeader, 4> headers;
  for (const NamedTensor& input : request.inputs) {
    headers.push_back({input.name, ToProtocol(input.tensor.dtype), input.tensor.shape.dims(),
                       static_cast<std::int64_t>(input.tensor.bytes.size())});
  }
  NormalizeRequestHead head;
  head.model = request.model;
  head.version = request.version;
  head.priority = request.priority;
  head.queue_timeout_ns = std::max<std::int64_t>(request.queue_timeout.count(), 0);
  head.precision = request.precision;
  head.inputs = headers;
  const absl::StatusOr<EncodedMessage> message = EncodeNormalizeRequest(head);
  if (!message.ok()) return message.status();
  absl::InlinedVector<grpc::Slice, 4> data;
  for (const NamedTensor& input : request.inputs) {
    data.push_back(SliceHolding(input.tensor.bytes, input.owner));
  }
  return EncodedRequest(Assemble(*message, data));
}

}  // namespace normd::client

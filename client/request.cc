#include "client/request.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/slice.h"
#include "wire/data_type.h"
#include "wire/grpc_slices.h"
#include "wire/infer_request.h"
#include "wire/normalize_request.h"

namespace normd::client {
namespace {

std::int64_t QueueTimeoutNs(const NormalizeRequest& request) {
  return std::max<std::int64_t>(request.queue_timeout.count(), 0);
}

absl::StatusOr<EncodedMessage> EncodeForNormd(const NormalizeRequest& request) {
  absl::InlinedVector<TensorHeader, 4> headers;
  for (const NamedTensor& input : request.inputs) {
    headers.push_back({input.name, ToProtocol(input.tensor.dtype), input.tensor.shape.dims(),
                       static_cast<std::int64_t>(input.tensor.bytes.size())});
  }
  NormalizeRequestHead head;
  head.model = request.model;
  head.version = request.version;
  head.priority = request.priority;
  head.queue_timeout_ns = QueueTimeoutNs(request);
  head.precision = request.precision;
  head.inputs = headers;
  head.outputs = request.outputs;
  return EncodeNormalizeRequest(head);
}

// The value of the Open Inference Protocol's parameter; 0: left out.
std::int64_t PriorityParameter(v1::Priority priority) {
  switch (priority) {
    case v1::PRIORITY_HIGH: return 1;
    case v1::PRIORITY_NORMAL: return 2;
    case v1::PRIORITY_LOW: return 3;
    default: return 0;
  }
}

absl::StatusOr<EncodedMessage> EncodeForOpenInference(const NormalizeRequest& request) {
  if (request.precision != v1::PRECISION_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision: ", v1::Precision_Name(request.precision),
                     ", wanted none: the Open Inference Protocol does not have it"));
  }
  absl::InlinedVector<InferTensorHeader, 4> headers;
  for (const NamedTensor& input : request.inputs) {
    headers.push_back({input.name, NamesOf(input.tensor.dtype).inference, input.tensor.shape.dims(),
                       static_cast<std::int64_t>(input.tensor.bytes.size())});
  }
  const absl::AlphaNum version(request.version);
  InferMessageHead head;
  head.model = request.model;
  if (request.version != 0) head.version = version.Piece();
  head.priority = PriorityParameter(request.priority);
  const std::int64_t timeout_ns = QueueTimeoutNs(request);
  head.timeout_us = timeout_ns / 1000 + (timeout_ns % 1000 > 0 ? 1 : 0);
  head.tensors = headers;
  head.wanted_outputs = request.outputs;
  return EncodeInferRequest(head);
}

}  // namespace

absl::StatusOr<EncodedRequest> EncodedRequest::Create(const NormalizeRequest& request) {
  const absl::StatusOr<EncodedMessage> message = request.protocol == Protocol::kNormd
                                                     ? EncodeForNormd(request)
                                                     : EncodeForOpenInference(request);
  if (!message.ok()) return message.status();
  absl::InlinedVector<grpc::Slice, 4> data;
  for (const NamedTensor& input : request.inputs) {
    data.push_back(SliceHolding(input.tensor.bytes, input.owner));
  }
  return EncodedRequest(request.protocol, Assemble(*message, data));
}

}  // namespace normd::client

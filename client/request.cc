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

SharedPartHeader PartOf(const NamedTensor& input) {
  if (input.region.empty()) return {};
  return {input.region, input.region_offset, static_cast<std::int64_t>(input.tensor.bytes.size())};
}

// The input's bytes in the message, which carries none that lie in shared memory.
std::int64_t DataBytes(const NamedTensor& input) {
  return input.region.empty() ? static_cast<std::int64_t>(input.tensor.bytes.size()) : 0;
}

using WantedOutputs = absl::InlinedVector<WantedOutputHeader, 4>;

WantedOutputs WantedOf(const NormalizeRequest& request) {
  WantedOutputs wanted;
  for (const std::string& name : request.outputs) wanted.push_back({name});
  for (const SharedOutput& output : request.shared_outputs) {
    auto at = std::find_if(wanted.begin(), wanted.end(),
                           [&](const auto& header) { return header.name == output.name; });
    if (at == wanted.end()) at = wanted.insert(at, {output.name});
    at->shared_memory = {output.region, output.region_offset,
                         static_cast<std::int64_t>(output.bytes.size())};
  }
  return wanted;
}

// Null if no tensor lies in shared memory.
std::shared_ptr<const SharedTensors> SharedOf(const NormalizeRequest& request) {
  SharedTensors shared;
  for (const NamedTensor& input : request.inputs) {
    if (!input.region.empty()) shared.inputs.push_back(input.owner);
  }
  shared.outputs = request.shared_outputs;
  if (shared.inputs.empty() && shared.outputs.empty()) return nullptr;
  return std::make_shared<const SharedTensors>(std::move(shared));
}

absl::StatusOr<EncodedMessage> EncodeForNormd(const NormalizeRequest& request) {
  absl::InlinedVector<TensorHeader, 4> headers;
  for (const NamedTensor& input : request.inputs) {
    headers.push_back({input.name, ToProtocol(input.tensor.dtype), input.tensor.shape.dims(),
                       DataBytes(input), PartOf(input)});
  }
  NormalizeRequestHead head;
  head.model = request.model;
  head.version = request.version;
  head.priority = request.priority;
  head.queue_timeout_ns = QueueTimeoutNs(request);
  head.precision = request.precision;
  head.inputs = headers;
  const WantedOutputs wanted = WantedOf(request);
  head.outputs = wanted;
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
                       DataBytes(input), PartOf(input)});
  }
  const absl::AlphaNum version(request.version);
  InferMessageHead head;
  head.model = request.model;
  if (request.version != 0) head.version = version.Piece();
  head.priority = PriorityParameter(request.priority);
  const std::int64_t timeout_ns = QueueTimeoutNs(request);
  head.timeout_us = timeout_ns / 1000 + (timeout_ns % 1000 > 0 ? 1 : 0);
  head.tensors = headers;
  const WantedOutputs wanted = WantedOf(request);
  head.wanted_outputs = wanted;
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
    data.push_back(input.region.empty() ? SliceHolding(input.tensor.bytes, input.owner)
                                        : grpc::Slice());
  }
  return EncodedRequest(request.protocol, Assemble(*message, data), SharedOf(request));
}

}  // namespace normd::client

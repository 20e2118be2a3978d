#include "server/rpc/infer_messages.h"

#include <utility>

#include "inference/grpc_service.pb.h"
#include "server/infer/infer_description.h"
#include "wire/data_type.h"
#include "wire/grpc_slices.h"
#include "wire/infer_request.h"

namespace normd {

absl::StatusOr<RequestDescription> InferCodec::Decode(absl::Span<const ConstBytes> slices) const {
  absl::StatusOr<InferRequestView> view = DecodeInferRequest(slices);
  if (!view.ok()) return view.status();
  return DescribeInferRequest(*std::move(view));
}

std::string InferCodec::IdOf(absl::Span<const ConstBytes> slices) const {
  return InferRequestId(slices);
}

grpc::ByteBuffer InferCodec::Encode(ResponseDescription&& response) const {
  absl::InlinedVector<InferTensorHeader, kInlinedOutputs> outputs;
  absl::InlinedVector<grpc::Slice, kInlinedOutputs> data;
  for (OutputDescription& output : response.outputs) {
    InferTensorHeader& header = outputs.emplace_back();
    header = {output.name, NamesOf(output.dtype).inference, output.shape, output.bytes};
    if (output.region != nullptr) {
      header.data_bytes = 0;
      header.shared_memory = {output.region->region, output.region->offset, output.region->bytes};
    }
    const ConstBytes bytes(output.data.data(), output.data.size());
    data.push_back(SliceHolding(bytes, std::move(output.data)));
  }
  const absl::AlphaNum version(response.version);
  InferMessageHead head;
  head.model = response.model;
  head.version = version.Piece();
  head.id = response.id;
  head.final_response = responses_ == InferMessageKind::kStreamResponse;
  head.tensors = outputs;
  return Assemble(EncodeInferMessage(responses_, head), data);
}

grpc::ByteBuffer EncodeInferError(absl::string_view message, absl::string_view id) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(std::string(message));
  response.mutable_infer_response()->set_id(std::string(id));
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace normd

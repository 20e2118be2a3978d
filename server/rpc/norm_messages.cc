#include "server/rpc/norm_messages.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/grpc_slices.h"
#include "wire/normalize_response.h"

namespace normd {
namespace {

absl::StatusOr<Priority> PriorityOf(v1::Priority priority) {
  switch (priority) {
    case v1::PRIORITY_UNSPECIFIED:
    case v1::PRIORITY_NORMAL: return Priority::kNormal;
    case v1::PRIORITY_LOW: return Priority::kLow;
    case v1::PRIORITY_HIGH: return Priority::kHigh;
    default:
      return absl::InvalidArgumentError(absl::StrCat("priority: ", static_cast<int>(priority),
                                                     ", wanted from 0 to ", v1::Priority_MAX));
  }
}

// An only output needs no name, like an only input, unless the request named it.
absl::string_view NameOnWire(absl::string_view name, std::size_t outputs, bool by_name) {
  return outputs == 1 && !by_name ? absl::string_view() : name;
}

std::optional<RegionReference> ReferenceOf(std::optional<ReceivedSharedPart>&& part) {
  if (!part.has_value()) return std::nullopt;
  return RegionReference{std::move(part->region), part->offset, part->byte_size};
}

}  // namespace

RequestDescription Describe(NormalizeRequestView&& view) {
  RequestDescription request;
  request.model = std::move(view.model);
  request.version = view.version;
  for (ReceivedTensor& tensor : view.inputs) {
    InputDescription& input = request.inputs.emplace_back();
    input.name = std::move(tensor.name);
    input.dtype = FromProtocol(tensor.dtype);
    input.name_of = [](norm::DType dtype) { return v1::DataType_Name(ToProtocol(dtype)); };
    input.shape = std::move(tensor.shape);
    input.data.views = std::move(tensor.data);
    input.data_bytes = tensor.data_bytes;
    input.region = ReferenceOf(std::move(tensor.shared_memory));
  }
  request.priority = PriorityOf(view.priority);
  request.queue_timeout_ns = view.queue_timeout_ns;
  request.options.precision = view.precision;
  request.only_named_outputs = !view.unnamed_outputs;
  for (ReceivedOutput& output : view.outputs) {
    request.outputs.push_back(
        {std::move(output.name), {}, ReferenceOf(std::move(output.shared_memory))});
  }
  return request;
}

absl::StatusOr<RequestDescription> NormalizeCodec::Decode(
    absl::Span<const ConstBytes> slices) const {
  absl::StatusOr<NormalizeRequestView> view = DecodeNormalizeRequest(slices);
  if (!view.ok()) return view.status();
  return Describe(*std::move(view));
}

grpc::ByteBuffer NormalizeCodec::Encode(ResponseDescription&& response) const {
  NormalizeResponseHead head;
  head.model = response.model;
  head.version = response.version;
  for (std::size_t i = 0; i < head.stage_ns.size(); ++i) {
    head.stage_ns[i] = response.stages[static_cast<Stage>(i)].count();
  }
  head.batch_id = response.batch->id;
  head.batch_requests = response.batch->requests;
  head.batch_bytes = response.batch->bytes;
  head.lane = response.batch->lane;
  absl::InlinedVector<TensorHeader, kInlinedOutputs> outputs;
  absl::InlinedVector<grpc::Slice, kInlinedOutputs> data;
  for (OutputDescription& output : response.outputs) {
    TensorHeader& header = outputs.emplace_back();
    header = {NameOnWire(output.name, response.outputs.size(), response.outputs_by_name),
              ToProtocol(output.dtype), output.shape, output.bytes};
    if (output.region != nullptr) {
      header.data_bytes = 0;
      header.shared_memory = {output.region->region, output.region->offset, output.region->bytes};
    }
    const ConstBytes bytes(output.data.data(), output.data.size());
    data.push_back(SliceHolding(bytes, std::move(output.data)));
  }
  head.outputs = outputs;
  return Assemble(EncodeNormalizeResponse(head), data);
}

std::string EncodeStreamHeader(const Model& model, const AcceptedRequest& accepted) {
  v1::NormalizeStreamResponse response;
  v1::NormalizeStreamHeader& out = *response.mutable_header();
  out.set_model(model.name());
  out.set_version(model.version());
  const absl::Span<const TensorSignature> outputs = model.outputs();
  std::size_t sent = 0;
  for (std::size_t k = 0; k < outputs.size(); ++k) sent += accepted.outputs.Has(k) ? 1 : 0;
  // Without memory for the array, protobuf would lose the message that it adds.
  out.mutable_outputs()->Reserve(static_cast<int>(sent));
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!accepted.outputs.Has(k)) continue;
    const TensorType& type = accepted.inputs.outputs[k];
    v1::Tensor& output = *out.add_outputs();
    output.set_name(std::string(NameOnWire(outputs[k].name, sent, accepted.outputs.by_name)));
    output.set_dtype(ToProtocol(type.dtype));
    for (const std::int64_t dim : type.shape.dims()) output.add_shape(dim);
  }
  out.set_samples(accepted.geometry().samples);
  out.set_window_bytes(accepted.stream->limits.window_bytes);
  out.set_max_chunk_bytes(accepted.stream->limits.max_chunk_bytes());
  return response.SerializeAsString();
}

std::string EncodeStreamTrailer(const StreamTotals& totals) {
  v1::NormalizeStreamResponse response;
  v1::NormalizeStreamTrailer& trailer = *response.mutable_trailer();
  v1::StageTimes& stages = *trailer.mutable_stages();
  stages.set_decode_ns(totals.stages[Stage::kDecode].count());
  stages.set_queue_ns(totals.stages[Stage::kQueue].count());
  stages.set_gather_ns(totals.stages[Stage::kGather].count());
  stages.set_copy_in_ns(totals.stages[Stage::kCopyIn].count());
  stages.set_compute_ns(totals.stages[Stage::kCompute].count());
  stages.set_copy_out_ns(totals.stages[Stage::kCopyOut].count());
  trailer.set_pieces(totals.pieces);
  trailer.set_batches(totals.batches);
  trailer.set_bytes(totals.bytes);
  return response.SerializeAsString();
}

}  // namespace normd

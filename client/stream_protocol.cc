#include "client/stream_protocol.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "wire/data_type.h"
#include "wire/grpc_slices.h"
#include "wire/slice_stream.h"
#include "wire/stream_part.h"

namespace normd::client {
namespace {

using Kind = StreamPartView::Kind;

// The part in `buffer`, as views of `slices`.
absl::StatusOr<StreamPartView> DecodePart(const grpc::ByteBuffer& buffer,
                                          std::vector<grpc::Slice>& slices) {
  if (!buffer.Dump(&slices).ok()) return BrokenResponse("cannot be decompressed");
  absl::StatusOr<StreamPartView> part = DecodeStreamResponse(ViewsOf(slices));
  if (!part.ok()) {
    return BrokenResponse(absl::StrCat("not a NormalizeStreamResponse: ", part.status().message()));
  }
  return part;
}

bool Parse(const StreamPartView& part, google::protobuf::MessageLite& message) {
  SliceStream stream(part.bytes);
  return message.ParseFromZeroCopyStream(&stream);
}

// Whether the shapes can have the same number of samples: they begin with the same number, or
// differ in their last dimension alone. The server reports the number.
bool HasTheSamplesOf(absl::Span<const std::int64_t> first, absl::Span<const std::int64_t> other) {
  if (!first.empty() && !other.empty() && first[0] == other[0]) return true;
  if (first.size() != other.size()) return false;
  return first.empty() || std::equal(first.begin(), first.end() - 1, other.begin());
}

// Whether each tensor divides into `samples`. Older servers report 0.
bool AreOf(std::int64_t samples, absl::Span<const TensorSpec> tensors) {
  if (samples == 0) return true;
  return samples > 0 && std::all_of(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
           return tensor.shape.elements() % samples == 0;
         });
}

absl::StatusOr<TensorSpec> TakeOutput(const v1::Tensor& output, const StreamRequest& request) {
  const DataTypeNames* type =
      FindDataType(&DataTypeNames::protocol, static_cast<int>(output.dtype()));
  if (type == nullptr || request.inputs.empty() ||
      !HasTheSamplesOf(request.inputs.front().shape.dims(), output.shape())) {
    return BrokenResponse("an output of another type or shape than the input's");
  }
  absl::StatusOr<Shape> shape = Shape::Create(output.shape());
  if (!shape.ok()) return BrokenResponse(shape.status().message());
  return TensorSpec{output.name(), type->dtype, *std::move(shape)};
}

}  // namespace

grpc::ByteBuffer EncodeStreamHeader(const StreamRequest& request) {
  v1::NormalizeStreamRequest message;
  v1::NormalizeRequest& header = *message.mutable_header();
  header.set_model(request.model);
  header.set_version(request.version);
  header.set_priority(request.priority);
  header.set_queue_timeout_ns(request.queue_timeout.count());
  header.set_precision(request.precision);
  for (const TensorSpec& input : request.inputs) {
    v1::Tensor& tensor = *header.add_inputs();
    tensor.set_name(input.name);
    tensor.set_dtype(ToProtocol(input.dtype));
    for (const std::int64_t dim : input.shape.dims()) tensor.add_shape(dim);
  }
  for (const std::string& name : request.outputs) header.add_outputs()->set_name(name);
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EncodeStreamChunk(const grpc::Slice& data) {
  const grpc::Slice slices[] = {grpc::Slice(EncodeStreamChunkHead(data.size())), data};
  return grpc::ByteBuffer(slices, 2);
}

absl::Status BrokenResponse(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the server's response: ", what));
}

absl::StatusOr<std::int64_t> StreamBytes(const StreamRequest& request) {
  if (request.inputs.empty()) {
    return absl::InvalidArgumentError("inputs: none, wanted at least one");
  }
  const TensorSpec& first = request.inputs.front();
  std::int64_t total = 0;
  for (const TensorSpec& input : request.inputs) {
    const absl::StatusOr<std::int64_t> bytes = TensorBytes(input.dtype, input.shape);
    if (!bytes.ok()) return bytes;
    if (!HasTheSamplesOf(first.shape.dims(), input.shape.dims())) {
      return absl::InvalidArgumentError(absl::StrCat(input.name, ": shape ", input.shape.ToString(),
                                                     ", wanted the samples of ", first.name,
                                                     ", which is ", first.shape.ToString()));
    }
    if (*bytes > std::numeric_limits<std::int64_t>::max() - total) {
      return absl::InvalidArgumentError("inputs: more than 2^63 bytes in all");
    }
    total += *bytes;
  }
  return total;
}

absl::StatusOr<AcceptedStream> TakeStreamHeader(const grpc::ByteBuffer& buffer,
                                                const StreamRequest& request,
                                                StreamResult& result) {
  std::vector<grpc::Slice> slices;
  const absl::StatusOr<StreamPartView> part = DecodePart(buffer, slices);
  if (!part.ok()) return part.status();
  v1::NormalizeStreamHeader header;
  if (part->kind != Kind::kHeader || !Parse(*part, header))
    return BrokenResponse("its first message is no header");
  if (header.outputs().empty()) return BrokenResponse("no output");
  AcceptedStream accepted;
  std::vector<TensorSpec> outputs;
  for (const v1::Tensor& tensor : header.outputs()) {
    absl::StatusOr<TensorSpec> output = TakeOutput(tensor, request);
    if (!output.ok()) return output.status();
    const absl::StatusOr<std::int64_t> bytes = TensorBytes(output->dtype, output->shape);
    if (!bytes.ok()) return BrokenResponse(bytes.status().message());
    if (*bytes > std::numeric_limits<std::int64_t>::max() - accepted.output_bytes) {
      return BrokenResponse("outputs of more than 2^63 bytes in all");
    }
    accepted.output_bytes += *bytes;
    outputs.push_back(*std::move(output));
  }
  if (!AreOf(header.samples(), request.inputs) || !AreOf(header.samples(), outputs)) {
    return BrokenResponse(absl::StrCat("samples: ", header.samples(),
                                       ", wanted a divisor of each tensor's elements"));
  }
  accepted.max_chunk_bytes = header.max_chunk_bytes();
  if (accepted.max_chunk_bytes <= 0) return BrokenResponse("max_chunk_bytes: not above 0");
  result.model = header.model();
  result.version = header.version();
  result.outputs = std::move(outputs);
  result.samples = header.samples();
  result.window_bytes = header.window_bytes();
  return accepted;
}

absl::Status StreamReception::Take(const grpc::ByteBuffer& buffer, StreamChunk& chunk,
                                   StreamResult& result) {
  absl::StatusOr<StreamPartView> part = DecodePart(buffer, chunk.slices);
  if (!part.ok()) return part.status();
  if (result.complete) return BrokenResponse("a message after the trailer");
  switch (part->kind) {
    case Kind::kHeader: return BrokenResponse("a second header");
    case Kind::kTrailer:
      if (received_bytes_ < total_bytes_)
        return BrokenResponse("a trailer before the tensors' end");
      if (!Parse(*part, result.trailer)) return BrokenResponse("a trailer that cannot be read");
      result.complete = true;
      return absl::OkStatus();
    case Kind::kNone: return absl::OkStatus();  // From a newer server: unknown fields.
    case Kind::kChunk: break;
  }
  if (part->size > total_bytes_ - received_bytes_) {
    return BrokenResponse("more bytes than the tensor has");
  }
  received_bytes_ += part->size;
  chunk.pieces = std::move(part->bytes);
  return absl::OkStatus();
}

}  // namespace normd::client

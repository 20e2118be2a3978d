#include "client/stream_wire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensor/tensor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace normd::client {
namespace {

using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// Reads the first field's tag and length. The size of both; 0 when they are no such thing.
std::size_t ReadChunkHead(const std::vector<grpc::Slice>& slices, std::int64_t& chunk_bytes) {
  std::uint8_t head[16];
  std::size_t size = 0;
  for (const grpc::Slice& slice : slices) {
    const std::size_t part = std::min(slice.size(), sizeof(head) - size);
    std::copy_n(slice.begin(), part, head + size);
    size += part;
  }
  google::protobuf::io::CodedInputStream in(head, static_cast<int>(size));
  std::uint32_t length = 0;
  if (in.ReadTag() != Wire::MakeTag(v1::NormalizeStreamResponse::kChunkFieldNumber,
                                    Wire::WIRETYPE_LENGTH_DELIMITED) ||
      !in.ReadVarint32(&length)) {
    return 0;
  }
  chunk_bytes = length;
  return static_cast<std::size_t>(in.CurrentPosition());
}

void AddInput(const char* name, norm::DType dtype, const Shape& shape,
              v1::NormalizeRequest& header) {
  v1::Tensor& input = *header.add_inputs();
  input.set_name(name);
  input.set_dtype(static_cast<v1::DataType>(dtype));  // The protocol's numbers are the same.
  for (const std::int64_t dim : shape.dims()) input.add_shape(dim);
}

// A fused layer changes the last dimension, and nothing else.
bool MayAnswer(absl::Span<const std::int64_t> x, absl::Span<const std::int64_t> answer) {
  if (x.size() != answer.size()) return false;
  return x.empty() || std::equal(x.begin(), x.end() - 1, answer.begin());
}

}  // namespace

std::string EncodeChunkHead(std::size_t size) {
  std::uint8_t head[16];
  std::uint8_t* end = Wire::WriteTagToArray(v1::NormalizeStreamRequest::kChunkFieldNumber,
                                            Wire::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<std::uint32_t>(size), end);
  return std::string(reinterpret_cast<const char*>(head), static_cast<std::size_t>(end - head));
}

grpc::ByteBuffer EncodeStreamHeader(const StreamRequest& request) {
  v1::NormalizeStreamRequest message;
  v1::NormalizeRequest& header = *message.mutable_header();
  header.set_model(request.model);
  header.set_version(request.version);
  header.set_priority(request.priority);
  header.set_queue_timeout_ns(request.queue_timeout.count());
  header.set_precision(request.precision);
  AddInput(request.y_shape ? "x" : "", request.dtype, request.shape, header);
  if (request.y_shape) AddInput("y", request.dtype, *request.y_shape, header);
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status BrokenAnswer(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the server's answer: ", what));
}

absl::Status DecodeStreamAnswer(const grpc::ByteBuffer& buffer, StreamAnswer& answer) {
  if (!buffer.Dump(&answer.slices).ok()) return BrokenAnswer("cannot be decompressed");
  std::size_t skip = ReadChunkHead(answer.slices, answer.chunk_bytes);
  if (skip == 0) {
    // The reader wants a buffer that it may change; the copy shares the slices.
    grpc::ByteBuffer shared(buffer);
    grpc::ProtoBufferReader reader(&shared);
    if (!reader.status().ok() || !answer.message.ParseFromZeroCopyStream(&reader)) {
      return BrokenAnswer("not a NormalizeStreamResponse");
    }
    return absl::OkStatus();
  }
  if (buffer.Length() - skip != static_cast<std::size_t>(answer.chunk_bytes)) {
    return BrokenAnswer("a chunk and something else in one message");
  }
  for (const grpc::Slice& slice : answer.slices) {
    const std::size_t head = std::min(skip, slice.size());
    skip -= head;
    if (head == slice.size()) continue;
    answer.chunk.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + head,
                              slice.size() - head);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> StreamBytes(const StreamRequest& request) {
  const absl::StatusOr<std::int64_t> x_bytes = TensorBytes(request.dtype, request.shape);
  if (!x_bytes.ok() || !request.y_shape) return x_bytes;
  const absl::StatusOr<std::int64_t> y_bytes = TensorBytes(request.dtype, *request.y_shape);
  if (!y_bytes.ok()) return y_bytes;
  if (!MayAnswer(request.shape.dims(), request.y_shape->dims())) {
    return absl::InvalidArgumentError(absl::StrCat("y: shape ", request.y_shape->ToString(),
                                                   ", wanted the samples of x, which is ",
                                                   request.shape.ToString()));
  }
  return *x_bytes + *y_bytes;
}

absl::StatusOr<AcceptedStream> TakeStreamHeader(const grpc::ByteBuffer& buffer,
                                                const StreamRequest& request,
                                                StreamResult& result) {
  StreamAnswer answer;
  if (absl::Status status = DecodeStreamAnswer(buffer, answer); !status.ok()) return status;
  if (!answer.message.has_header()) return BrokenAnswer("no header first");
  const v1::NormalizeStreamHeader& header = answer.message.header();
  if (header.outputs_size() != 1 ||
      header.outputs(0).dtype() != static_cast<v1::DataType>(request.dtype) ||
      !MayAnswer(request.shape.dims(), header.outputs(0).shape())) {
    return BrokenAnswer("an output of another type or shape than the input's");
  }
  absl::StatusOr<Shape> shape = Shape::Create(header.outputs(0).shape());
  if (!shape.ok()) return BrokenAnswer(shape.status().message());
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(request.dtype, *shape);
  if (!bytes.ok()) return BrokenAnswer(bytes.status().message());
  if (header.max_chunk_bytes() <= 0) return BrokenAnswer("max_chunk_bytes: not above 0");
  result.model = header.model();
  result.version = header.version();
  result.shape = *std::move(shape);
  result.window_bytes = header.window_bytes();
  return AcceptedStream{header.max_chunk_bytes(), *bytes};
}

absl::Status StreamReception::Take(const grpc::ByteBuffer& buffer, StreamAnswer& answer,
                                   StreamResult& result) {
  if (absl::Status status = DecodeStreamAnswer(buffer, answer); !status.ok()) return status;
  if (result.complete) return BrokenAnswer("a message after the trailer");
  if (answer.message.has_header()) return BrokenAnswer("a second header");
  if (answer.message.has_trailer()) {
    if (received_bytes_ < total_bytes_) return BrokenAnswer("the trailer too early");
    result.trailer = answer.message.trailer();
    result.complete = true;
    return absl::OkStatus();
  }
  if (answer.chunk_bytes > total_bytes_ - received_bytes_) {
    return BrokenAnswer("more bytes than the tensor has");
  }
  received_bytes_ += answer.chunk_bytes;
  return absl::OkStatus();
}

}  // namespace normd::client

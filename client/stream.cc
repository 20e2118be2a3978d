#include "client/stream.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/tensor/tensor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"
#include "server/base/mutex.h"

namespace normd::client {
namespace {

using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// One is read into, one or two wait, one is being sent.
constexpr int kChunkBuffers = 4;

// Buffers that come back when gRPC has let go of them, which may be after the call.
class ChunkPool : public std::enable_shared_from_this<ChunkPool> {
 public:
  explicit ChunkPool(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // Waits for a free one. Null after Close.
  std::unique_ptr<std::byte[]> Take() {
    MutexLock lock(mutex_);
    while (free_.empty() && taken_ == kChunkBuffers && !closed_) changed_.Wait(mutex_);
    if (closed_) return nullptr;
    if (free_.empty()) {
      ++taken_;
      return std::unique_ptr<std::byte[]>(new std::byte[chunk_bytes_]);
    }
    std::unique_ptr<std::byte[]> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalAll();
  }

  // A slice of the first `size` bytes that gives the buffer back at its end.
  grpc::Slice Lend(std::unique_ptr<std::byte[]> buffer, std::size_t size) {
    auto loan = std::make_unique<Loan>();
    loan->pool = shared_from_this();
    loan->buffer = std::move(buffer);
    std::byte* data = loan->buffer.get();
    return grpc::Slice(
        data, size, [](void* ended) { Return(static_cast<Loan*>(ended)); }, loan.release());
  }

 private:
  struct Loan {
    std::shared_ptr<ChunkPool> pool;  // shared: with the call.
    std::unique_ptr<std::byte[]> buffer;
  };

  static void Return(Loan* ended) {
    const std::unique_ptr<Loan> loan(ended);
    MutexLock lock(loan->pool->mutex_);
    loan->pool->free_.push_back(std::move(loan->buffer));
    loan->pool->changed_.SignalAll();
  }

  const std::size_t chunk_bytes_;
  Mutex mutex_;
  CondVar changed_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<std::byte[]>> free_ ABSL_GUARDED_BY(mutex_);
};

std::string ChunkHead(std::size_t size) {
  std::uint8_t head[16];
  std::uint8_t* end = Wire::WriteTagToArray(v1::NormalizeStreamRequest::kChunkFieldNumber,
                                            Wire::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<std::uint32_t>(size), end);
  return std::string(reinterpret_cast<const char*>(head), static_cast<std::size_t>(end - head));
}

grpc::ByteBuffer EncodeHeader(const StreamRequest& request) {
  v1::NormalizeStreamRequest message;
  v1::NormalizeRequest& header = *message.mutable_header();
  header.set_model(request.model);
  header.set_version(request.version);
  header.set_priority(request.priority);
  header.set_queue_timeout_ns(request.queue_timeout.count());
  v1::Tensor& input = *header.add_inputs();
  input.set_dtype(
      static_cast<v1::DataType>(request.dtype));  // The protocol's numbers are the same.
  for (const std::int64_t dim : request.shape.dims()) input.add_shape(dim);
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// An answer: a header or a trailer, or the bytes of a chunk in the slices in which they came.
struct Answer {
  v1::NormalizeStreamResponse message;
  std::vector<grpc::Slice> slices;
  std::vector<absl::Span<const std::byte>> chunk;
  std::int64_t chunk_bytes = 0;
};

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

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the server's answer: ", what));
}

absl::Status Decode(const grpc::ByteBuffer& buffer, Answer& answer) {
  if (!buffer.Dump(&answer.slices).ok()) return Broken("cannot be decompressed");
  std::size_t skip = ReadChunkHead(answer.slices, answer.chunk_bytes);
  if (skip == 0) {
    // The reader wants a buffer that it may change; the copy shares the slices.
    grpc::ByteBuffer shared(buffer);
    grpc::ProtoBufferReader reader(&shared);
    if (!reader.status().ok() || !answer.message.ParseFromZeroCopyStream(&reader)) {
      return Broken("not a NormalizeStreamResponse");
    }
    return absl::OkStatus();
  }
  if (buffer.Length() - skip != static_cast<std::size_t>(answer.chunk_bytes)) {
    return Broken("a chunk and something else in one message");
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

// Reads the input and sends it, on a thread of its own.
class Sender {
 public:
  Sender(StreamTransport& transport, StreamReader reader, std::int64_t total, std::int64_t chunk)
      : transport_(transport),
        reader_(reader),
        total_(total),
        chunk_(chunk),
        pool_(std::make_shared<ChunkPool>(static_cast<std::size_t>(chunk))),
        thread_([this] { Run(); }) {}

  std::int64_t sent_bytes() const { return sent_.load(std::memory_order_relaxed); }
  // Waits for the end; soon after the call's. The reader's error.
  absl::Status Join() {
    pool_->Close();
    thread_.join();
    return status_;
  }

 private:
  void Run() {
    for (std::int64_t at = 0; at < total_;) {
      std::unique_ptr<std::byte[]> buffer = pool_->Take();
      if (buffer == nullptr) return;
      const auto size = static_cast<std::size_t>(std::min(chunk_, total_ - at));
      status_ = reader_(absl::MakeSpan(buffer.get(), size));
      if (!status_.ok()) return transport_.Cancel();
      const grpc::Slice slices[] = {grpc::Slice(ChunkHead(size)),
                                    pool_->Lend(std::move(buffer), size)};
      if (!transport_.Write(grpc::ByteBuffer(slices, 2))) return;
      at += static_cast<std::int64_t>(size);
      sent_.store(at, std::memory_order_relaxed);  // Relaxed: for the progress alone.
    }
    transport_.WritesDone();
  }

  StreamTransport& transport_;
  const StreamReader reader_;
  const std::int64_t total_;
  const std::int64_t chunk_;
  const std::shared_ptr<ChunkPool> pool_;  // shared: with slices that outlive the call.
  std::atomic<std::int64_t> sent_{0};
  absl::Status status_;  // The thread's until it is joined.
  std::thread thread_;
};

absl::Status TakeHeader(const grpc::ByteBuffer& buffer, const StreamRequest& request,
                        StreamResult& result, std::int64_t& max_chunk_bytes) {
  Answer answer;
  if (absl::Status status = Decode(buffer, answer); !status.ok()) return status;
  if (!answer.message.has_header()) return Broken("no header first");
  const v1::NormalizeStreamHeader& header = answer.message.header();
  const auto dims = request.shape.dims();
  if (header.outputs_size() != 1 ||
      header.outputs(0).dtype() != static_cast<v1::DataType>(request.dtype) ||
      !std::equal(dims.begin(), dims.end(), header.outputs(0).shape().begin(),
                  header.outputs(0).shape().end())) {
    return Broken("an output of another type or shape than the input's");
  }
  if (header.max_chunk_bytes() <= 0) return Broken("max_chunk_bytes: not above 0");
  result.model = header.model();
  result.version = header.version();
  result.window_bytes = header.window_bytes();
  max_chunk_bytes = header.max_chunk_bytes();
  return absl::OkStatus();
}

// Takes the chunks and the trailer.
absl::Status Receive(StreamTransport& transport, const StreamRequest& request, const Sender& sender,
                     StreamWriter writer, StreamProgress progress, StreamResult& result) {
  while (const std::optional<grpc::ByteBuffer> buffer = transport.Read()) {
    Answer answer;
    absl::Status status = Decode(*buffer, answer);
    if (!status.ok()) return status;
    if (result.complete) return Broken("a message after the trailer");
    if (answer.message.has_header()) return Broken("a second header");
    if (answer.message.has_trailer()) {
      if (progress.received_bytes < progress.total_bytes) return Broken("the trailer too early");
      result.trailer = answer.message.trailer();
      result.complete = true;
      continue;
    }
    if (answer.chunk_bytes > progress.total_bytes - progress.received_bytes) {
      return Broken("more bytes than the tensor has");
    }
    for (const absl::Span<const std::byte> piece : answer.chunk) {
      if (status = writer(piece); !status.ok()) return status;
    }
    progress.received_bytes += answer.chunk_bytes;
    progress.sent_bytes = sender.sent_bytes();
    if (request.on_progress) request.on_progress(progress);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStream(StreamTransport& transport, const StreamRequest& request,
                       StreamReader reader, StreamWriter writer, StreamResult& result) {
  const absl::StatusOr<std::int64_t> total = TensorBytes(request.dtype, request.shape);
  if (!total.ok()) return total.status();
  if (request.chunk_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes: ", request.chunk_bytes, ", wanted at least 1"));
  }
  if (!transport.Write(EncodeHeader(request))) return absl::OkStatus();
  const std::optional<grpc::ByteBuffer> first = transport.Read();
  if (!first.has_value()) return absl::OkStatus();
  std::int64_t max_chunk_bytes = 0;
  absl::Status status = TakeHeader(*first, request, result, max_chunk_bytes);
  if (!status.ok()) return status;
  Sender sender(transport, reader, *total, std::min(request.chunk_bytes, max_chunk_bytes));
  status = Receive(transport, request, sender, writer, {0, 0, *total}, result);
  if (!status.ok()) transport.Cancel();
  const absl::Status read = sender.Join();
  return read.ok() ? status : read;
}

}  // namespace normd::client

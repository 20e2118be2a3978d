#include "client/stream.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/stream_protocol.h"
#include "grpcpp/support/slice.h"

namespace normd::client {
namespace {

// One is being filled, one or two wait, one is being sent.
constexpr int kChunkBuffers = 4;

// Buffers that return when gRPC has released them, which may be after the call.
class ChunkPool : public std::enable_shared_from_this<ChunkPool> {
 public:
  explicit ChunkPool(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // Waits for a free buffer. Null after Close.
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

  // A slice of the first `size` bytes that returns the buffer when it is released.
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
  // Waits for the end, which comes soon after the call's. Returns the reader's error.
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
      if (!transport_.Write(EncodeStreamChunk(pool_->Lend(std::move(buffer), size)))) return;
      at += static_cast<std::int64_t>(size);
      sent_.store(at, std::memory_order_relaxed);  // Relaxed: only the progress reads it.
    }
    transport_.WritesDone();
  }

  StreamTransport& transport_;
  const StreamReader reader_;
  const std::int64_t total_;
  const std::int64_t chunk_;
  const std::shared_ptr<ChunkPool> pool_;  // shared: with slices that outlive the call.
  std::atomic<std::int64_t> sent_{0};
  absl::Status status_;  // Owned by the thread until it is joined.
  std::thread thread_;
};

// Takes the chunks and the trailer.
absl::Status Receive(StreamTransport& transport, const StreamRequest& request, const Sender& sender,
                     StreamWriter writer, StreamProgress progress, StreamResult& result) {
  StreamReception reception(progress.total_bytes);
  while (const std::optional<grpc::ByteBuffer> buffer = transport.Read()) {
    StreamChunk chunk;
    absl::Status status = reception.Take(*buffer, chunk, result);
    if (!status.ok()) return status;
    if (chunk.pieces.empty()) continue;
    for (const ConstBytes piece : chunk.pieces) {
      if (status = writer(piece); !status.ok()) return status;
    }
    progress.received_bytes = reception.received_bytes();
    progress.sent_bytes = sender.sent_bytes();
    if (request.on_progress) request.on_progress(progress);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStream(StreamTransport& transport, const StreamRequest& request,
                       StreamReader reader, StreamWriter writer, StreamResult& result) {
  const absl::StatusOr<std::int64_t> total = StreamBytes(request);
  if (!total.ok()) return total.status();
  if (request.chunk_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes: ", request.chunk_bytes, ", wanted at least 1"));
  }
  if (!transport.Write(EncodeStreamHeader(request))) return absl::OkStatus();
  const std::optional<grpc::ByteBuffer> first = transport.Read();
  if (!first.has_value()) return absl::OkStatus();
  const absl::StatusOr<AcceptedStream> accepted = TakeStreamHeader(*first, request, result);
  if (!accepted.ok()) return accepted.status();
  if (request.on_accepted) {
    if (absl::Status status = request.on_accepted(result); !status.ok()) return status;
  }
  Sender sender(transport, reader, *total,
                std::min(request.chunk_bytes, accepted->max_chunk_bytes));
  absl::Status status =
      Receive(transport, request, sender, writer, {0, 0, accepted->output_bytes}, result);
  if (!status.ok()) transport.Cancel();
  const absl::Status read = sender.Join();
  return read.ok() ? status : read;
}

}  // namespace normd::client

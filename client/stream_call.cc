#include "client/stream_call.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "client/stream_protocol.h"
#include "client/stream_transport.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "wire/grpc_slices.h"

namespace normd::client {
namespace {

// Writes run one after another, each begun by the end of the one before; so do reads, beside them.
// All operations but the first are begun within gRPC's callbacks, so none needs a hold.
class StreamCall final : public PendingCall,
                         private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamCall(std::shared_ptr<const StreamedTensor> tensor, StreamHandlers handlers)
      : tensor_(std::move(tensor)), handlers_(std::move(handlers)) {}

  void Start(grpc::GenericStub& stub, const std::string& method, std::shared_ptr<StreamCall> self) {
    self_ = std::move(self);
    SetTimeout(context_, tensor_->request.timeout);
    stub.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    outgoing_ = EncodeStreamHeader(tensor_->request);
    StartWrite(&outgoing_);
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  void OnWriteDone(bool ok) override {
    outgoing_.Clear();
    if (!ok) return;
    if (header_written_) return WriteNext();
    header_written_ = true;
    BeginChunks();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    broken_ = Take(incoming_);
    incoming_.Clear();
    if (!broken_.ok()) return context_.TryCancel();
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<StreamCall> self = std::move(self_);
    std::move(handlers_.done)(broken_, status, std::move(result_));
  }

  absl::Status Take(const grpc::ByteBuffer& message) {
    if (!answered_) {
      answered_ = true;
      const auto accepted = TakeStreamHeader(message, tensor_->request, result_);
      if (!accepted.ok()) return accepted.status();
      reception_.emplace(accepted->output_bytes);
      chunk_bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(
          std::min(tensor_->request.chunk_bytes, accepted->max_chunk_bytes), 1));
      BeginChunks();
      return absl::OkStatus();
    }
    StreamChunk chunk;
    absl::Status status = reception_->Take(message, chunk, result_);
    if (!status.ok() || !handlers_.on_bytes) return status;
    for (const ConstBytes piece : chunk.pieces) handlers_.on_bytes(piece);
    return absl::OkStatus();
  }

  // Called when the header has been written and when it has been answered: the second call begins
  // the chunks. This order passes `chunk_bytes_` from the reads to the writes.
  void BeginChunks() {
    if (begun_.exchange(true, std::memory_order_acq_rel)) WriteNext();
  }

  void WriteNext() {
    const std::size_t total = tensor_->bytes.size();
    if (at_ == total) {
      // Runs once, also for an empty tensor.
      if (!ended_) StartWritesDone();
      ended_ = true;
      return;
    }
    const std::size_t size = std::min(chunk_bytes_, total - at_);
    outgoing_ = EncodeStreamChunk(SliceHolding(tensor_->bytes.subspan(at_, size), tensor_->owner));
    at_ += size;
    if (at_ < total) return StartWrite(&outgoing_);
    ended_ = true;
    StartWriteLast(&outgoing_, grpc::WriteOptions());
  }

  // shared: with the calls in flight, which may outlive the client.
  const std::shared_ptr<const StreamedTensor> tensor_;
  StreamHandlers handlers_;
  std::shared_ptr<StreamCall> self_;  // shared: with the caller, who may cancel; itself until done.
  grpc::ClientContext context_;
  std::atomic<bool> begun_{false};
  // For the writes.
  grpc::ByteBuffer outgoing_;
  bool header_written_ = false;
  std::size_t at_ = 0;
  bool ended_ = false;
  std::size_t chunk_bytes_ = 0;  // Set before the chunks begin.
  // For the reads.
  grpc::ByteBuffer incoming_;
  bool answered_ = false;
  std::optional<StreamReception> reception_;  // Set once the call is answered.
  StreamResult result_;
  absl::Status broken_;
};

}  // namespace

std::shared_ptr<PendingCall> StartStream(grpc::GenericStub& stub, const std::string& method,
                                         std::shared_ptr<const StreamedTensor> tensor,
                                         StreamHandlers handlers) {
  auto call = std::make_shared<StreamCall>(std::move(tensor), std::move(handlers));
  call->Start(stub, method, call);
  return call;
}

}  // namespace normd::client

// The driver of a NormalizeStream: acts on the facts that events have recorded.

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "server/accept/client_status.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/status.h"
#include "server/rpc/stream_call.h"
#include "wire/stream_part.h"

namespace normd {
namespace {

// The time until a full queue is asked again. Long against a batch, short against a time-out.
constexpr auto kQueueFullWait = std::chrono::milliseconds(5);

}  // namespace

StreamCall::Action StreamCall::Next() {
  if (Action watch = NextWatch()) return watch;
  if (Action settle = NextOfLease()) return settle;
  // Reading comes before the lanes: a push may compute the piece before it returns.
  if (Action read = NextRead()) return read;
  if (Action write = NextWrite()) return write;
  return NextPush();
}

StreamCall::Action StreamCall::NextOfFailed() {
  const bool abandon = writing_ && std::exchange(abandoned_, false);
  if (!std::exchange(told_queue_, true)) return Abandon(abandon);
  // The status waits behind the message that the client does not take.
  if (abandon) return [this] { context_.TryCancel(); };
  // The client should read the reason, so the status waits behind the message, but not for ever.
  if (writing_) return NextWatch();
  if (line_.computing() || queue_full_) return nullptr;
  window_.Clear();  // Only the status is kept.
  if (Action settle = NextOfLease()) return settle;
  if (Action watch = NextWatch()) return watch;
  finished_ = true;
  patience_.OnProgress(accept_.clock.Now());
  return [this, status = status_] {
    Finish(ToGrpc(call_.End(status), options_.retry_after, context_));
  };
}

// Ends the work for a client that will get no result. Like its action, this needs no memory.
StreamCall::Action StreamCall::Abandon(bool abandon) {
  line_.Abandon(abandoned_pieces_);
  if (input_.has_value()) abandoned_input_.emplace(*std::move(input_));
  input_.reset();
  return [this, abandon] { DropAbandoned(abandon); };
}

void StreamCall::DropAbandoned(bool abandon) {
  if (alarm_ != nullptr) alarm_->Cancel();
  accept_.admission.StopAwaiting(lease_);
  if (abandon) context_.TryCancel();
  for (const PieceLine::Piece& piece : abandoned_pieces_) {
    if (piece.request == nullptr && !piece.output.has_value()) accept_.queue.Cancel(piece.id);
  }
  abandoned_pieces_.clear();
  abandoned_input_.reset();
}

StreamCall::Action StreamCall::NextWatch() {
  if (watched_ || !patience_.bounded()) return nullptr;
  watched_ = true;
  return [this, until_idle = patience_.CheckAt() - accept_.clock.Now()] { Watch(until_idle); };
}

// Adjusts the lease to the bytes inside.
StreamCall::Action StreamCall::NextOfLease() {
  if (const std::optional<std::int64_t> bytes = window_.Settle()) {
    return [this, bytes = *bytes] { Settle(bytes); };
  }
  if (!window_.EndOverdraft()) return nullptr;
  patience_.EndOverdraft();
  return [this] { accept_.admission.EndOverdraft(lease_); };
}

void StreamCall::Settle(std::int64_t bytes) {
  if (!lease_.active()) return;
  lease_.Add(std::max<std::int64_t>(bytes, 0));
  if (bytes < 0) lease_.Return(-bytes);
}

StreamCall::Action StreamCall::NextRead() {
  if (reading_ || half_closed_ || window_.awaits_room() || !window_.Fits()) return nullptr;
  // The header, and the half-close after the last chunk, take no room.
  const bool more =
      accepted() && input_->received_bytes() < accepted_request_.geometry().InputBytes();
  if (more && !window_.TakeRoom(line_.next()) && !accept_.admission.MayGrow(lease_)) {
    return
        [this, bytes = window_.AwaitRoom()] { accept_.admission.AwaitRoom(lease_, bytes, weak_); };
  }
  reading_ = true;
  return [this] { StartRead(&incoming_); };
}

StreamCall::Action StreamCall::NextWrite() {
  if (writing_ || !accepted()) return nullptr;
  Action write = [this] { StartWrite(&outgoing_); };
  if (!header_sent_) {
    header_sent_ = true;
    SetOutgoing({grpc::Slice(EncodeStreamHeader(*call_.model(), accepted_request_))});
  } else if (line_.has_chunk()) {
    const PieceLine::Chunk chunk = line_.TakeChunk();
    SetOutgoing({grpc::Slice(EncodeStreamChunkHead(chunk.data.size())), chunk.data});
    window_.OnWrite(chunk.answered_bytes);
  } else if (half_closed_ && line_.empty()) {
    SetOutgoing({grpc::Slice(EncodeStreamTrailer(line_.totals()))});
    write = [this] { StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK); };
    finished_ = true;
    patience_.OnProgress(accept_.clock.Now());
  } else {
    return nullptr;
  }
  writing_ = true;
  patience_.OnWrite(accept_.clock.Now());
  return write;
}

void StreamCall::SetOutgoing(std::initializer_list<grpc::Slice> slices) {
  outgoing_ = grpc::ByteBuffer(slices.begin(), slices.size());
  accept_.metrics.AddPayload(0, static_cast<std::int64_t>(outgoing_.Length()));
}

StreamCall::Action StreamCall::NextPush() {
  if (queue_full_) return nullptr;
  std::unique_ptr<Request> request = line_.Push();
  if (request == nullptr) return nullptr;
  return [this, request = std::move(request)]() mutable { Push(std::move(request)); };
}

void StreamCall::Push(std::unique_ptr<Request> request) {
  std::unique_ptr<grpc::Alarm> alarm;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    absl::Status pushed = accept_.queue.Push(request);
    // A new alarm: this may be running in the old one's callback.
    if (absl::IsResourceExhausted(pushed)) alarm = std::make_unique<grpc::Alarm>();
    return pushed;
  });
  if (status.ok()) return;
  {
    MutexLock lock(mutex_);
    line_.OnDone();
    if (!status_.ok()) return;
    if (alarm == nullptr) return Fail(status);
    // The stream has its share of the budgets and waits for a place in the queue.
    line_.PutBack(std::move(request));
    queue_full_ = true;
  }
  alarm_ = std::move(alarm);
  alarm_->Set(std::chrono::system_clock::now() + kQueueFullWait, [this](bool) { OnAlarm(); });
}

void StreamCall::Watch(Duration until_idle) {
  try {
    idle_alarm_ = std::make_unique<grpc::Alarm>();
    idle_alarm_->Set(
        std::chrono::system_clock::now() +
            std::chrono::duration_cast<std::chrono::system_clock::duration>(until_idle),
        [weak = weak_](bool) {
          if (const std::shared_ptr<StreamCall> call = weak.lock()) call->OnIdleAlarm();
        });
  } catch (const std::bad_alloc&) {
    MutexLock lock(mutex_);
    watched_ = false;
    throw;
  }
}

}  // namespace normd

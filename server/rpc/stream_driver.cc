// The driver of a stream: acts on the facts that events have recorded.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "server/accept/client_status.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/status.h"
#include "server/rpc/stream_call.h"
#include "wire/stream_part.h"

namespace normd {
namespace {

// The most in one response message: within the default limits of gRPC's clients, and still in a
// cache.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
// The time until a full queue is asked again. Long against a batch, short against a time-out.
constexpr auto kQueueFullWait = std::chrono::milliseconds(5);

}  // namespace

bool StreamCall::BecomeDriver() { return !std::exchange(driving_, true); }

void StreamCall::Drive() {
  for (;;) {
    Step step;
    {
      MutexLock lock(mutex_);
      const absl::Status status = CatchAll([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        Next(step);
        return absl::OkStatus();
      });
      if (!status.ok()) {
        Fail(status);
        continue;
      }
      if (step.kind == Step::Kind::kNone) driving_ = false;
      // After the last operation the call may be gone: `driving_` stays set, so that nobody drives
      // again.
    }
    switch (step.kind) {
      case Step::Kind::kNone: return;
      case Step::Kind::kWatch: Watch(step.until_idle); break;
      case Step::Kind::kSettle: Settle(step.bytes); break;
      case Step::Kind::kAwaitRoom: accept_.admission.AwaitRoom(lease_, step.bytes, weak_); break;
      case Step::Kind::kEndOverdraft: accept_.admission.EndOverdraft(lease_); break;
      case Step::Kind::kPush: Push(step); break;
      case Step::Kind::kRead: StartRead(&incoming_); break;
      case Step::Kind::kWrite: StartWrite(&outgoing_); break;
      case Step::Kind::kWriteLast:
        StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
        return;
      case Step::Kind::kCancel:
        if (alarm_ != nullptr) alarm_->Cancel();
        accept_.admission.StopAwaiting(lease_);
        // The status waits behind the message that the client does not take.
        if (step.abandon) context_.TryCancel();
        for (const std::uint64_t id : step.ids) accept_.queue.Cancel(id);
        break;
      case Step::Kind::kFinish:
        Finish(ToGrpc(call_.End(step.status), options_.retry_after, context_));
        return;
    }
  }
}

void StreamCall::Next(Step& step) {
  if (finished_) return;
  if (!status_.ok()) return NextOfFailed(step);
  if (NextWatch(step) || NextOfLease(step)) return;
  // Reading comes before the lanes: a push may compute the piece before it returns.
  if (NextRead(step)) return;
  if (!writing_ && NextWrite(step)) {
    writing_ = true;
    patience_.OnWrite(accept_.clock.Now());
  } else if (pushed_ < pieces_.size() && !waiting_) {
    step.kind = Step::Kind::kPush;
    step.request = std::move(pieces_[pushed_++].request);
    ++computing_;
  }
}

void StreamCall::NextOfFailed(Step& step) {
  if (!told_queue_) {
    told_queue_ = true;
    step.kind = Step::Kind::kCancel;
    step.abandon = writing_ && std::exchange(abandoned_, false);
    for (std::size_t i = 0; i < pushed_; ++i) {
      if (!pieces_[i].output.has_value()) step.ids.push_back(pieces_[i].id);
    }
    // Destroyed with the step, after the lock is released.
    step.pieces.swap(pieces_);
    step.input.swap(input_);
  } else if (writing_ && std::exchange(abandoned_, false)) {
    step.kind = Step::Kind::kCancel;
    step.abandon = true;
  } else if (writing_) {
    // The client should read the reason, so the status waits behind the message, but not for ever.
    NextWatch(step);
  } else if (computing_ == 0 && !waiting_) {
    inside_bytes_ = 0;  // Only the status is kept.
    if (NextOfLease(step) || NextWatch(step)) return;
    step.kind = Step::Kind::kFinish;
    step.status = status_;
    finished_ = true;
    patience_.OnProgress(accept_.clock.Now());
  }
}

bool StreamCall::NextWatch(Step& step) {
  if (watched_ || !patience_.bounded()) return false;
  step.kind = Step::Kind::kWatch;
  step.until_idle = patience_.CheckAt() - accept_.clock.Now();
  watched_ = true;
  return true;
}

// Adjusts the lease to the bytes inside.
bool StreamCall::NextOfLease(Step& step) {
  const std::int64_t held = accepted_ ? HeldBytes(inside_bytes_) : 0;
  if (held != leased_bytes_ || unsettled_) {
    step.kind = Step::Kind::kSettle;
    step.bytes = held - std::exchange(leased_bytes_, held);
    unsettled_ = false;
    return true;
  }
  if (overdraws_ && (overdraft_over_ || !status_.ok())) {
    step.kind = Step::Kind::kEndOverdraft;
    overdraws_ = false;
    patience_.EndOverdraft();
    return true;
  }
  return false;
}

void StreamCall::Settle(std::int64_t bytes) {
  if (!lease_.active()) return;
  lease_.Add(std::max<std::int64_t>(bytes, 0));
  if (bytes < 0) lease_.Return(-bytes);
}

bool StreamCall::NextRead(Step& step) {
  if (reading_ || half_closed_ || awaits_room_) return false;
  const bool more = accepted_ && input_->received_bytes() < input_bytes();
  if (accepted_ && inside_bytes_ + limits().max_chunk_bytes() > limits().window_bytes) {
    return false;
  }
  // The header, and the half-close after the last chunk, take no room.
  const bool may_read = !more || std::exchange(has_room_, false) ||
                        (overdraws_ && NextPiece() == overdrawn_piece_) ||
                        accept_.admission.MayGrow(lease_);
  if (may_read) {
    step.kind = Step::Kind::kRead;
    reading_ = true;
  } else {
    step.kind = Step::Kind::kAwaitRoom;
    step.bytes = HeldBytes(last_chunk_bytes_);
    awaits_room_ = true;
  }
  return true;
}

bool StreamCall::NextWrite(Step& step) {
  if (!accepted_) return false;
  step.kind = Step::Kind::kWrite;
  if (!header_sent_) {
    header_sent_ = true;
    SetOutgoing({grpc::Slice(EncodeStreamHeader(*call_.model(), accepted_request_))});
  } else if (!pieces_.empty() && pieces_.front().output.has_value()) {
    WriteChunk();
  } else if (half_closed_ && pieces_.empty()) {
    WriteTrailer();
    step.kind = Step::Kind::kWriteLast;
    finished_ = true;
    patience_.OnProgress(accept_.clock.Now());
  } else {
    step.kind = Step::Kind::kNone;
    return false;
  }
  return true;
}

// The inputs' share of the piece's sent bytes.
std::int64_t StreamCall::ResponseBytes(const Piece& piece) {
  const std::int64_t bytes = piece.output->bytes();
  if (piece.sent_bytes == bytes) return piece.geometry.InputBytes();
  // In 128 bits: a piece may be as large as a window, 2^40 bytes.
  return static_cast<std::int64_t>(absl::uint128(piece.sent_bytes) * piece.geometry.InputBytes() /
                                   bytes);
}

void StreamCall::WriteChunk() {
  Piece& piece = pieces_.front();
  const std::int64_t left = piece.output->bytes() - piece.sent_bytes;
  const std::int64_t size = std::min(left, kChunkBytes);
  const grpc::Slice data = piece.output->Next(size);
  SetOutgoing({grpc::Slice(EncodeStreamChunkHead(static_cast<std::size_t>(size))), data});
  const std::int64_t answered = ResponseBytes(piece);
  piece.sent_bytes += size;
  sent_bytes_ += size;
  response_bytes_ = ResponseBytes(piece) - answered;
  if (size < left) return;
  if (std::exchange(last_batch_, piece.batch_id) != piece.batch_id) ++batches_;
  pieces_.pop_front();
  ++first_piece_;
  --pushed_;
}

void StreamCall::WriteTrailer() {
  StreamTotals totals;
  totals.stages = stages_;
  totals.pieces = static_cast<std::int64_t>(first_piece_);
  totals.batches = batches_;
  totals.bytes = sent_bytes_;
  SetOutgoing({grpc::Slice(EncodeStreamTrailer(totals))});
}

void StreamCall::SetOutgoing(std::initializer_list<grpc::Slice> slices) {
  outgoing_ = grpc::ByteBuffer(slices.begin(), slices.size());
  accept_.metrics.AddPayload(0, static_cast<std::int64_t>(outgoing_.Length()));
}

void StreamCall::Push(Step& step) {
  const absl::Status status = accept_.queue.Push(step.request);
  if (status.ok()) return;
  {
    MutexLock lock(mutex_);
    --computing_;
    if (!status_.ok()) return;
    if (!absl::IsResourceExhausted(status)) return Fail(status);
    // The stream has its share of the budgets and waits for a place in the queue.
    pieces_[--pushed_].request = std::move(step.request);
    waiting_ = true;
  }
  // A new alarm: this may be running in the old one's callback.
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + kQueueFullWait, [this](bool) { OnAlarm(); });
}

void StreamCall::Watch(Duration until_idle) {
  idle_alarm_ = std::make_unique<grpc::Alarm>();
  idle_alarm_->Set(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(until_idle),
                   [weak = weak_](bool) {
                     if (const std::shared_ptr<StreamCall> call = weak.lock()) call->OnIdleAlarm();
                   });
}

}  // namespace normd

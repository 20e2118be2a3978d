#include "server/rpc/stream_call.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/accept/client_status.h"
#include "server/accept/message_limits.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/received_message.h"

namespace normd {

std::shared_ptr<StreamCall> StreamCall::Create(const CallOptions& options,
                                               AcceptEnvironment& accept,
                                               grpc::CallbackServerContext& context) {
  std::shared_ptr<StreamCall> call(new StreamCall(options, accept, context));
  accept.active.Add(call);
  call->self_ = call;
  call->weak_ = call;
  return call;
}

StreamCall::StreamCall(const CallOptions& options, AcceptEnvironment& accept,
                       grpc::CallbackServerContext& context)
    : options_(options),
      accept_(accept),
      context_(context),
      call_(accept, ArrivalOf(context, Method::kNormalizeStream, accept)),
      patience_(options.stream_idle_timeout, call_.arrival()) {
  if (call_.caller() == nullptr) return;
  call_.caller()->delivered.open_streams.fetch_add(1, std::memory_order_relaxed);
}

// Records the facts of an event, and acts on them if no other thread does.
template <typename Facts>
void StreamCall::Record(const Facts& facts) {
  bool drive = false;
  {
    MutexLock lock(mutex_);
    facts();
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::Start() {
  const absl::Status allowed = CatchAll([this] { return call_.Authorize(); });
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!allowed.ok()) Fail(allowed);
  });
}

// Events.

void StreamCall::OnReadDone(bool ok) {
  const TimePoint begin = accept_.clock.Now();
  std::vector<grpc::Slice> slices;
  StreamPartView part;
  const bool first = !has_header_;
  absl::Status status;
  if (ok) {
    status = CatchAll([&] {
      absl::Status read = ReadMessage(part, slices);
      return read.ok() && first ? TakeHeader(part) : read;
    });
  }
  bool drive = false;
  {
    MutexLock lock(mutex_);
    reading_ = false;
    half_closed_ = !ok;
    unsettled_ = true;
    patience_.OnProgress(begin);
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (!ok) return TakeEnd();
      return first ? Accept() : TakeChunk(part, slices);
    };
    if (status.ok() && status_.ok()) status = CatchAll(take);
    decode_time_ += accept_.clock.Now() - begin;
    if (!status.ok()) Fail(status);
    drive = BecomeDriver();
  }
  slices.clear();
  if (drive) Drive();
}

void StreamCall::OnWriteDone(bool ok) {
  outgoing_.Clear();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = false;
    patience_.OnTaken(accept_.clock.Now());
    inside_bytes_ -= std::exchange(response_bytes_, 0);
    overdraft_over_ = overdraws_ && first_piece_ > overdrawn_piece_;
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
  });
}

void StreamCall::OnRoom(bool overdraft) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    awaits_room_ = false;
    has_room_ = true;
    const TimePoint now = accept_.clock.Now();
    patience_.OnProgress(now);  // The client's turn begins.
    if (!overdraft) return;
    overdraws_ = true;
    overdraft_over_ = false;
    overdrawn_piece_ = NextPiece();
    patience_.BeginOverdraft(now, CallOptions::PatienceFor(options_.stream_idle_timeout,
                                                           HeldBytes(limits().max_piece_bytes())));
  });
}

void StreamCall::OnCancel() {
  Abort(call_.deadline() <= accept_.clock.Now()
            ? absl::DeadlineExceededError("the deadline passed before the stream's end")
            : absl::CancelledError("the client cancelled the stream"));
}

void StreamCall::Abort(const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); });
}

void StreamCall::AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool waits = reading_ && !writing_ && pieces_.empty() && !ServersTurn();
    if (!accepted_ || (waits && patience_.last_progress() <= quiet_since)) Fail(status);
  });
}

void StreamCall::OnAlarm() {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { waiting_ = false; });
}

bool StreamCall::ServersTurn() const { return computing_ > 0 || waiting_ || awaits_room_; }

void StreamCall::OnIdleAlarm() {
  const TimePoint now = accept_.clock.Now();
  bool finished = false;
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    watched_ = false;
    finished = finished_;
    if (finished) return;
    const absl::Status status = patience_.Check(now, ServersTurn());
    if (status.ok()) return;
    abandoned_ = true;
    Fail(status);
  });
  if (finished) OnIdleAfterFinish(now);
}

// The driver is gone, and only the client's turn is left: to take the trailer or the status.
void StreamCall::OnIdleAfterFinish(TimePoint now) {
  grpc_call* call = nullptr;
  Duration left{};
  {
    MutexLock lock(mutex_);
    if (done_ || watched_) return;
    left = patience_.CheckAt() - now;
    if (left <= Duration(0)) {
      call = context_.c_call();
      // Beyond OnDone, after which the context may be gone. It cannot run while the lock is held.
      grpc_call_ref(call);
    } else {
      watched_ = true;
    }
  }
  if (call == nullptr) return Watch(left);
  grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "the client did not take the end",
                               nullptr);
  grpc_call_unref(call);
}

void StreamCall::OnComputed(std::uint64_t number, Completion&& completion) {
  if (completion.status.ok()) {
    call_.metrics().RecordStages(completion.stages, completion.batch.requests);
  }
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    --computing_;
    if (!status_.ok()) return;
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return TakeResult(number, completion);
    };
    const absl::Status status = completion.status.ok() ? CatchAll(take) : completion.status;
    if (!status.ok()) Fail(status);
  });
}

void StreamCall::OnDone() {
  const std::shared_ptr<StreamCall> self = std::move(self_);
  accept_.active.Remove(this);
  if (call_.caller() != nullptr) {
    call_.caller()->delivered.open_streams.fetch_sub(1, std::memory_order_relaxed);
  }
  StageTimes stages;
  BatchInfo batch;
  {
    MutexLock lock(mutex_);
    done_ = true;
    stages = stages_;
    batch = batch_;
  }
  // A client that left has not read the status.
  if (call_.code() != absl::StatusCode::kOk && context_.IsCancelled()) {
    call_.SetCode(call_.deadline() <= accept_.clock.Now() ? absl::StatusCode::kDeadlineExceeded
                                                          : absl::StatusCode::kCancelled);
  }
  call_.RecordAndLog(stages, batch);
}

// What events bring.

absl::Status StreamCall::ReadMessage(StreamPartView& part, std::vector<grpc::Slice>& slices) {
  const auto message_bytes = static_cast<std::int64_t>(incoming_.Length());
  accept_.metrics.AddPayload(message_bytes, 0);
  call_.CountReceived(message_bytes);
  // The lease counts the largest chunk before it comes.
  const std::int64_t max_bytes =
      std::min(accept_.limits.stream.max_chunk_bytes(), accept_.limits.max_request_bytes);
  const absl::StatusOr<MessageViews> views = OpenMessage(
      context_, incoming_,
      {max_bytes + kMaxRequestOverheadBytes, [](std::int64_t) { return absl::OkStatus(); }},
      slices);
  if (!views.ok()) return views.status();
  incoming_.Clear();
  absl::StatusOr<StreamPartView> decoded = DecodeStreamRequest(*views);
  if (!decoded.ok()) return decoded.status();
  part = *std::move(decoded);
  return absl::OkStatus();
}

absl::Status StreamCall::TakeHeader(const StreamPartView& part) {
  has_header_ = true;
  const absl::StatusOr<RequestDescription> request = ReadStreamHeader(part);
  if (!request.ok()) return request.status();
  return AcceptRequest(accept_, call_, *request, accepted_request_);
}

absl::Status StreamCall::Accept() {
  input_.emplace(*call_.model(), accepted_request_);
  accepted_ = true;
  return absl::OkStatus();
}

absl::Status StreamCall::TakeChunk(const StreamPartView& part,
                                   const std::vector<grpc::Slice>& slices) {
  received_.clear();
  if (absl::Status status = input_->Take(part, slices, received_); !status.ok()) return status;
  inside_bytes_ += part.size;
  last_chunk_bytes_ = part.size;
  for (ReceivedPiece& piece : received_) {
    const std::uint64_t number = NextPiece();
    Piece& added = pieces_.emplace_back();
    added.geometry = piece.geometry;
    added.request = MakePiece(number, std::move(piece));
    added.id = added.request->id;
  }
  received_.clear();
  return absl::OkStatus();
}

absl::Status StreamCall::TakeEnd() const {
  if (!accepted_) return absl::InvalidArgumentError("part: no message, wanted the header");
  return input_->TakeEnd();
}

std::unique_ptr<Request> StreamCall::MakePiece(std::uint64_t number, ReceivedPiece piece) {
  std::unique_ptr<Request> request = MakeRequest(accept_, call_, accepted_request_, piece.geometry);
  for (ByteViews& views : piece.inputs) request->inputs.push_back({std::move(views), {}});
  request->input_owner = std::move(piece.owner);
  request->arrival = accept_.clock.Now();
  request->may_be_dropped = false;  // The stream was admitted as a whole.
  request->stages[Stage::kDecode] = std::exchange(decode_time_, Duration(0));
  request->done = [this, number](Completion&& completion) {
    OnComputed(number, std::move(completion));
  };
  return request;
}

absl::Status StreamCall::TakeResult(std::uint64_t number, Completion& completion) {
  Piece& piece = pieces_[number - first_piece_];
  absl::StatusOr<PieceOutput> output =
      PieceOutput::Create(piece.geometry, std::move(completion.outputs), accepted_request_.outputs);
  if (!output.ok()) return output.status();
  piece.output = *std::move(output);
  piece.batch_id = completion.batch.id;
  for (std::size_t i = 0; i < kStageCount; ++i) {
    stages_[static_cast<Stage>(i)] += completion.stages[static_cast<Stage>(i)];
  }
  batch_ = std::move(completion.batch);
  return absl::OkStatus();
}

void StreamCall::Fail(const absl::Status& status) {
  if (!status_.ok() || finished_) return;
  status_ = status;
  call_.Cancel();
}

}  // namespace normd

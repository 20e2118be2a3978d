#include "server/rpc/stream_call.h"

#include <grpc/grpc.h>

#include <algorithm>
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
  call->weak_ = call;
  call->Enter(call);  // A stop may abort it from here on.
  return call;
}

StreamCall::StreamCall(const CallOptions& options, AcceptEnvironment& accept,
                       grpc::CallbackServerContext& context)
    : DrivenStream(accept, context, ArrivalOf(context, Method::kNormalizeStream, accept)),
      options_(options),
      patience_(options.stream_idle_timeout, call_.arrival()) {}

// Events.

void StreamCall::OnReadDone(bool ok) {
  if (TakeMessage(ok)) Drive();
}

bool StreamCall::TakeMessage(bool ok) {
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
    incoming_.Clear();
  }
  MutexLock lock(mutex_);
  reading_ = false;
  half_closed_ = !ok;
  window_.OnMessage();
  patience_.OnProgress(begin);
  const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ok) return TakeEnd();
    return first ? Accept() : TakeChunk(part, slices);
  };
  if (status.ok() && status_.ok()) status = CatchAll(take);
  decode_time_ += accept_.clock.Now() - begin;
  if (!status.ok()) Fail(status);
  return BecomeDriver();
}

void StreamCall::OnWriteDone(bool ok) {
  outgoing_.Clear();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = false;
    patience_.OnTaken(accept_.clock.Now());
    window_.OnWritten(line_.first());
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
  });
}

void StreamCall::OnRoom(bool overdraft) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    window_.OnRoom(overdraft, line_.next());
    const TimePoint now = accept_.clock.Now();
    patience_.OnProgress(now);  // The client's turn begins.
    if (!overdraft) return;
    const std::int64_t bytes =
        HeldBytes(accepted_request_.geometry(), accepted_request_.stream->limits.max_piece_bytes());
    patience_.BeginOverdraft(now, CallOptions::PatienceFor(options_.stream_idle_timeout, bytes));
  });
}

void StreamCall::AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool waits = reading_ && !writing_ && line_.empty() && !ServersTurn();
    if (!accepted() || (waits && patience_.last_progress() <= quiet_since)) Fail(status);
  });
}

void StreamCall::OnAlarm() {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { queue_full_ = false; });
}

bool StreamCall::ServersTurn() const {
  return line_.computing() || queue_full_ || window_.awaits_room();
}

void StreamCall::OnIdleAlarm() {
  const TimePoint now = accept_.clock.Now();
  bool finished = false;
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    watched_ = false;
    finished = finished_;
    if (finished) return;
    const absl::Status status = CatchAll([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return patience_.Check(now, ServersTurn());
    });
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
  absl::Status status = completion.status;
  if (status.ok()) {
    status = CatchAll([&] {
      call_.metrics().RecordStages(completion.stages, completion.batch.requests);
      return absl::OkStatus();
    });
  }
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    line_.OnDone();
    if (!status_.ok()) return;
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return line_.SetResult(number, completion, accepted_request_.outputs);
    };
    if (status.ok()) status = CatchAll(take);
    if (!status.ok()) Fail(status);
  });
}

void StreamCall::OnEnd() {
  StageTimes stages;
  BatchInfo batch;
  {
    MutexLock lock(mutex_);
    done_ = true;
    stages = line_.totals().stages;
    batch = line_.batch();
  }
  // A client that left has not read the status.
  if (call_.code() != absl::StatusCode::kOk && context_.IsCancelled()) {
    call_.SetCode(call_.code_of_leaving());
  }
  call_.RecordAndLog(stages, batch);
}

// What events bring.

absl::Status StreamCall::ReadMessage(StreamPartView& part, std::vector<grpc::Slice>& slices) {
  const auto message_bytes = static_cast<std::int64_t>(incoming_.Length());
  accept_.metrics.AddPayload(message_bytes, 0);
  call_.CountReceived(message_bytes);
  absl::Status fits = CheckMessageBytes(incoming_, accept_.limits);
  if (!fits.ok()) return fits;
  // The lease counts the largest chunk before it comes.
  const std::int64_t max_bytes =
      std::min(accept_.limits.stream.max_chunk_bytes(), accept_.limits.max_request_bytes);
  const absl::StatusOr<MessageViews> views = OpenMessage(
      context_, incoming_,
      {max_bytes + kMaxRequestOverheadBytes, [](std::int64_t) { return absl::OkStatus(); }},
      slices);
  if (!views.ok()) return views.status();
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
  window_.Open(accepted_request_.stream->limits, accepted_request_.geometry());
  return absl::OkStatus();
}

absl::Status StreamCall::TakeChunk(const StreamPartView& part,
                                   const std::vector<grpc::Slice>& slices) {
  received_.clear();
  if (absl::Status status = input_->Take(part, slices, received_); !status.ok()) return status;
  window_.OnChunk(part.size);
  for (ReceivedPiece& piece : received_) line_.Add(MakePiece(std::move(piece)));
  received_.clear();
  return absl::OkStatus();
}

absl::Status StreamCall::TakeEnd() const {
  if (!accepted()) return absl::InvalidArgumentError("part: no message, wanted the header");
  return input_->TakeEnd();
}

std::unique_ptr<Request> StreamCall::MakePiece(ReceivedPiece piece) {
  std::unique_ptr<Request> request = MakeRequest(accept_, call_, accepted_request_, piece.geometry);
  for (ByteViews& views : piece.inputs) request->inputs.push_back({std::move(views), {}});
  request->input_owner = std::move(piece.owner);
  request->arrival = accept_.clock.Now();
  request->may_be_dropped = false;  // The stream was admitted as a whole.
  request->stages[Stage::kDecode] = std::exchange(decode_time_, Duration(0));
  request->done = [this, number = line_.next()](Completion&& completion) {
    OnComputed(number, std::move(completion));
  };
  return request;
}

}  // namespace normd

#include "server/rpc/infer_stream.h"

#include <cstdint>
#include <utility>

#include "server/accept/client_status.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/status.h"

namespace normd {

std::shared_ptr<InferStream> InferStream::Create(CallEnvironment& environment,
                                                 grpc::CallbackServerContext& context) {
  std::shared_ptr<InferStream> stream(new InferStream(
      environment, context, ArrivalOf(context, Method::kModelStreamInfer, environment.accept)));
  stream->Enter(stream);
  return stream;
}

InferStream::InferStream(CallEnvironment& environment, grpc::CallbackServerContext& context,
                         CallArrival arrival)
    : DrivenStream(environment.accept, context, arrival),
      environment_(environment),
      arrival_(std::move(arrival)),
      last_progress_(arrival_.at) {}

// Events.

void InferStream::OnReadDone(bool ok) {
  SetReads(false);
  if (ok) {
    const absl::Status status = CatchAll([this] {
      CallArrival arrival = arrival_;
      arrival.at = accept_.clock.Now();
      // A stream may outlive many policies.
      arrival.identity = IdentityOf(context_, accept_);
      Take(std::make_unique<Turn>(accept_, std::move(arrival), codec_));
      return absl::OkStatus();
    });
    if (status.ok()) return;
    return Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      reading_ = false;
      Fail(status);
    });
  }
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    reading_ = false;
    half_closed_ = true;
  });
}

// Never throws once the turn belongs to the stream.
void InferStream::Take(std::unique_ptr<Turn> turn) {
  Turn& taken = *turn;
  absl::StatusOr<std::unique_ptr<Request>> request = absl::CancelledError();
  const absl::Status status = CatchAll([&] {
    request = Accept(taken);
    return request.status();
  });
  incoming_.Clear();
  const bool told = status.ok() || SetError(taken, status);
  bool push = false;
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    turns_.push_back(std::move(turn));
    if (!told) Fail(NoMemory());
    // The next message may come, on another thread, before this one's request is in the queue: the
    // responses have the turns' order.
    reading_ = false;
    last_progress_ = accept_.clock.Now();
    push = status.ok() && status_.ok();
    if (push) ++computing_;
  });
  if (!push) return;
  const absl::Status pushed = CatchAll([&] { return accept_.queue.Push(*request); });
  if (pushed.ok()) return;
  taken.exchange.LetGo();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!SetError(taken, pushed)) Fail(NoMemory());
    --computing_;
  });
}

absl::StatusOr<std::unique_ptr<Request>> InferStream::Accept(Turn& turn) {
  absl::StatusOr<std::unique_ptr<Request>> request = turn.exchange.Accept(context_, incoming_);
  if (request.ok()) {
    (*request)->done = [this, &turn](Completion&& completion) {
      OnComputed(turn, std::move(completion));
    };
  }
  return request;
}

void InferStream::OnComputed(Turn& turn, Completion&& completion) {
  const absl::Status status = turn.exchange.End(completion, turn.response);
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status.ok()) {
      turn.call.End(status).IgnoreError();
      turn.answered = true;
    } else if (!SetError(turn, status)) {
      Fail(NoMemory());
    }
    turn.stages = completion.stages;
    turn.batch = std::move(completion.batch);
    --computing_;
    last_progress_ = accept_.clock.Now();
  });
}

bool InferStream::SetError(Turn& turn, const absl::Status& status) {
  const absl::Status told = turn.call.End(status);
  turn.answered = true;
  return CatchAll([&] {
           turn.response = EncodeInferError(told.message(), turn.exchange.id());
           accept_.metrics.AddPayload(0, static_cast<std::int64_t>(turn.response.Length()));
           return absl::OkStatus();
         })
      .ok();
}

void InferStream::OnWriteDone(bool ok) {
  const bool given_up = environment_.responses.Remove(*taking_);
  taking_.reset();
  if (!ok) {
    call_.Leave();
    outgoing_->call.SetCode(call_.code_of_leaving());
  }
  if (given_up) outgoing_->call.SetCode(absl::StatusCode::kDeadlineExceeded);
  outgoing_->call.RecordAndLog(outgoing_->stages, outgoing_->batch);
  outgoing_.reset();  // Returns its part of the budgets.
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = false;
    last_progress_ = accept_.clock.Now();
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
  });
}

void InferStream::AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool waits = reading_ && !writing_ && turns_.empty();
    if (waits && last_progress_ <= quiet_since) Fail(status);
  });
}

void InferStream::OnEnd() {
  if (taking_.has_value()) environment_.responses.Remove(*taking_);
  taking_.reset();
  // In a stream that is allowed, each request counts by itself.
  if (refused_) call_.Record();
}

// The driver.

InferStream::Action InferStream::Next() {
  // Keeping the transport busy comes first.
  if (!reading_ && !half_closed_ && turns_.size() < kMaxInferStreamRequests) {
    reading_ = true;
    return [this] { Read(); };
  }
  if (writing_) return nullptr;
  if (!turns_.empty() && turns_.front()->answered) {
    writing_ = true;
    outgoing_ = std::move(turns_.front());
    turns_.pop_front();
    return [this] { Write(); };
  }
  if (!half_closed_ || !turns_.empty()) return nullptr;
  finished_ = true;
  return [this] { End(absl::OkStatus()); };
}

InferStream::Action InferStream::NextOfFailed() {
  if (!std::exchange(told_queue_, true)) {
    return [this] { CancelTurns(); };
  }
  if (writing_ || computing_ > 0) return nullptr;
  finished_ = true;
  return [this, status = status_] { End(status); };
}

// Like all that ends a stream, it needs no memory.
void InferStream::CancelTurns() {
  for (std::size_t i = 0;; ++i) {
    std::uint64_t id = 0;
    {
      MutexLock lock(mutex_);
      if (i >= turns_.size()) return;
      turns_[i]->call.Cancel();
      if (turns_[i]->answered) continue;
      id = turns_[i]->exchange.request_id();
    }
    accept_.queue.Cancel(id);
  }
}

std::unique_ptr<InferStream::Turn> InferStream::TakeTurn() {
  MutexLock lock(mutex_);
  if (turns_.empty()) return nullptr;
  std::unique_ptr<Turn> first = std::move(turns_.front());
  turns_.pop_front();
  return first;
}

void InferStream::End(const absl::Status& status) {
  const absl::Status ended = call_.End(status);
  while (const std::unique_ptr<Turn> turn = TakeTurn()) {
    turn->call.SetCode(call_.code());  // It was told, but nobody reads it.
    turn->call.RecordAndLog(turn->stages, turn->batch);
  }
  grpc::Status told = ToGrpc(ended, environment_.options.retry_after, context_);
  AwaitTaking(0);
  Finish(std::move(told));
}

void InferStream::Read() {
  SetReads(true);
  StartRead(&incoming_);
}

void InferStream::Write() {
  AwaitTaking(outgoing_->response.Length());
  StartWrite(&outgoing_->response);
}

// A client that takes neither a response nor the end within its time is dropped.
void InferStream::AwaitTaking(std::size_t bytes) {
  taking_.emplace();
  environment_.responses.Add(*taking_, context_.c_call(),
                             environment_.options.ResponsePatience(bytes));
}

}  // namespace normd

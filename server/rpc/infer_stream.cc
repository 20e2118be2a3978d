#include "server/rpc/infer_stream.h"

#include <utility>

#include "server/accept/client_status.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/status.h"

namespace normd {

std::shared_ptr<InferStream> InferStream::Create(CallEnvironment& environment,
                                                 grpc::CallbackServerContext& context) {
  std::shared_ptr<InferStream> stream(new InferStream(environment, context));
  environment.accept.active.Add(stream);
  stream->self_ = stream;
  return stream;
}

InferStream::InferStream(CallEnvironment& environment, grpc::CallbackServerContext& context)
    : environment_(environment),
      context_(context),
      arrival_(ArrivalOf(context, Method::kModelStreamInfer, environment.accept)),
      call_(environment.accept, arrival_),
      last_progress_(arrival_.at) {
  SetReads(false);
}

// While the stream does not read, the server does not blame its client for unread bytes; while it
// reads, a message that drips in is judged as a call's is.
void InferStream::SetReads(bool reads) {
  if (call_.caller() == nullptr) return;
  call_.caller()->delivered.open_streams.fetch_add(reads ? -1 : 1, std::memory_order_relaxed);
}

// Records the facts of an event, and acts on them if no other thread does.
template <typename Facts>
void InferStream::Record(const Facts& facts) {
  bool drive = false;
  {
    MutexLock lock(mutex_);
    facts();
    drive = !std::exchange(driving_, true);
  }
  if (drive) Drive();
}

void InferStream::Start() {
  const absl::Status allowed = CatchAll([this] { return call_.Authorize(); });
  refused_ = !allowed.ok();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!allowed.ok()) Fail(allowed);
  });
}

// Events.

void InferStream::OnReadDone(bool ok) {
  SetReads(false);
  if (ok) {
    const absl::Status status = CatchAll([this] {
      CallArrival arrival = arrival_;
      arrival.at = environment_.accept.clock.Now();
      // A stream may outlive many policies.
      arrival.identity = IdentityOf(context_, environment_.accept);
      Take(std::make_unique<Turn>(environment_.accept, std::move(arrival), codec_));
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
  if (!status.ok()) SetError(taken, status);
  bool push = false;
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    turns_.push_back(std::move(turn));
    // The next message may come, on another thread, before this one's request is in the queue: the
    // responses have the turns' order.
    reading_ = false;
    last_progress_ = environment_.accept.clock.Now();
    push = status.ok() && status_.ok();
    if (push) ++computing_;
  });
  if (!push) return;
  absl::Status pushed = environment_.accept.queue.Push(*request);
  if (pushed.ok()) return;
  taken.exchange.LetGo();
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SetError(taken, pushed);
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
    } else {
      SetError(turn, status);
    }
    turn.stages = completion.stages;
    turn.batch = std::move(completion.batch);
    --computing_;
    last_progress_ = environment_.accept.clock.Now();
  });
}

void InferStream::SetError(Turn& turn, const absl::Status& status) {
  const absl::Status told = turn.call.End(status);
  turn.response = EncodeInferError(told.message(), turn.exchange.id());
  environment_.accept.metrics.AddPayload(0, static_cast<std::int64_t>(turn.response.Length()));
  turn.answered = true;
}

void InferStream::OnWriteDone(bool ok) {
  const bool given_up = environment_.responses.Remove(*taking_);
  taking_.reset();
  if (!ok) outgoing_->call.SetCode(absl::StatusCode::kCancelled);
  if (given_up) outgoing_->call.SetCode(absl::StatusCode::kDeadlineExceeded);
  Turns written;
  written.push_back(std::move(outgoing_));
  RecordAll(written);
  written.clear();  // Returns its part of the budgets.
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = false;
    last_progress_ = environment_.accept.clock.Now();
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
  });
}

void InferStream::OnCancel() {
  Abort(call_.deadline() <= environment_.accept.clock.Now()
            ? absl::DeadlineExceededError("the deadline passed before the stream's end")
            : absl::CancelledError("the client cancelled the stream"));
}

void InferStream::Abort(const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); });
}

void InferStream::AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool waits = reading_ && !writing_ && turns_.empty();
    if (waits && last_progress_ <= quiet_since) Fail(status);
  });
}

void InferStream::OnDone() {
  const std::shared_ptr<InferStream> self = std::move(self_);
  if (taking_.has_value()) environment_.responses.Remove(*taking_);
  taking_.reset();
  environment_.accept.active.Remove(this);
  SetReads(true);  // No longer counted.
  // In a stream that is allowed, each request counts by itself.
  if (refused_) call_.Record();
}

void InferStream::Fail(const absl::Status& status) {
  if (!status_.ok() || finished_) return;
  status_ = status;
}

// The driver.

void InferStream::Drive() {
  for (;;) {
    Step step;
    {
      MutexLock lock(mutex_);
      Next(step);
      if (step.kind == Step::Kind::kNone) driving_ = false;
      // After Finish the stream may be gone: `driving_` stays set, so that nobody drives again.
    }
    switch (step.kind) {
      case Step::Kind::kNone: return;
      case Step::Kind::kRead: Read(); break;
      case Step::Kind::kWrite: Write(); break;
      case Step::Kind::kCancel:
        for (const std::uint64_t id : step.ids) environment_.accept.queue.Cancel(id);
        break;
      case Step::Kind::kFinish: {
        RecordAll(step.ended);
        step.ended.clear();
        const grpc::Status told =
            ToGrpc(call_.End(step.status), environment_.options.retry_after, context_);
        AwaitTaking(0);
        Finish(told);
        return;
      }
    }
  }
}

void InferStream::Next(Step& step) {
  if (finished_) return;
  if (!status_.ok()) return NextOfFailed(step);
  // Keeping the transport busy comes first.
  if (!reading_ && !half_closed_ && turns_.size() < kMaxInferStreamRequests) {
    reading_ = true;
    step.kind = Step::Kind::kRead;
  } else if (!writing_ && !turns_.empty() && turns_.front()->answered) {
    writing_ = true;
    outgoing_ = std::move(turns_.front());
    turns_.pop_front();
    step.kind = Step::Kind::kWrite;
  } else if (half_closed_ && !writing_ && turns_.empty()) {
    finished_ = true;
    step.kind = Step::Kind::kFinish;
  }
}

void InferStream::NextOfFailed(Step& step) {
  if (!told_queue_) {
    told_queue_ = true;
    step.kind = Step::Kind::kCancel;
    for (const std::unique_ptr<Turn>& turn : turns_) {
      turn->call.Cancel();
      if (!turn->answered) step.ids.push_back(turn->exchange.request_id());
    }
  } else if (!writing_ && computing_ == 0) {
    step.kind = Step::Kind::kFinish;
    step.status = status_;
    step.ended.swap(turns_);
    // They were told, but nobody reads it.
    for (const std::unique_ptr<Turn>& turn : step.ended) {
      turn->call.SetCode(status_.code());
    }
    finished_ = true;
  }
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

void InferStream::RecordAll(const Turns& ended) {
  for (const std::unique_ptr<Turn>& turn : ended) {
    turn->call.RecordAndLog(turn->stages, turn->batch);
  }
}

}  // namespace normd

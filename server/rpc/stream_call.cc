#include "server/rpc/stream_call.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/caller_name.h"
#include "server/rpc/compression.h"
#include "server/rpc/status.h"
#include "wire/grpc_slices.h"
#include "wire/normalize_request.h"

namespace normd {
namespace {

// A header is a name, a few numbers and a shape.
constexpr std::int64_t kMaxHeaderBytes = 4096;

template <typename T>
std::shared_ptr<T> Borrow(T* object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), object);
}

}  // namespace

std::shared_ptr<StreamCall> StreamCall::Create(CallEnvironment& environment,
                                               grpc::CallbackServerContext& context) {
  std::shared_ptr<StreamCall> call(new StreamCall(environment, context));
  environment.active.Add(call);
  call->self_ = call;
  call->weak_ = call;
  return call;
}

StreamCall::StreamCall(CallEnvironment& environment, grpc::CallbackServerContext& context)
    : presence_(environment.active),
      environment_(environment),
      context_(context),
      arrival_(environment.clock.Now()),
      ids_(EchoRequestIds(context)),
      deadline_(DeadlineOf(context, environment.clock)),
      metrics_(&environment.metrics.ForNoModel()),
      delivered_(environment.delivered.Find(context.peer())),
      last_progress_(arrival_) {
  if (delivered_ != nullptr) delivered_->open_streams.fetch_add(1, std::memory_order_relaxed);
}

// Records the facts of an event, and does what follows from them if nobody else does.
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
  Record([] {});
}

// Events.

void StreamCall::OnReadDone(bool ok) {
  const TimePoint begin = environment_.clock.Now();
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
    last_progress_ = begin;
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (!ok) return TakeEnd();
      return first ? Accept() : TakeChunk(part, slices);
    };
    if (status.ok() && status_.ok()) status = CatchAll(take);
    decode_time_ += environment_.clock.Now() - begin;
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
    last_progress_ = environment_.clock.Now();
    inside_bytes_ -= std::exchange(answering_bytes_, 0);
    overdraft_over_ = overdraws_ && first_piece_ > overdrawn_piece_;
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
  });
}

void StreamCall::OnRoom(bool overdraft) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    awaits_room_ = false;
    has_room_ = true;
    last_progress_ = environment_.clock.Now();  // The client's turn begins.
    if (!overdraft) return;
    overdraws_ = true;
    overdraft_over_ = false;
    overdrawn_piece_ = NextPiece();
    overdrawn_since_ = last_progress_;
  });
}

void StreamCall::OnCancel() {
  Abort(deadline_ <= environment_.clock.Now()
            ? absl::DeadlineExceededError("the deadline passed before the stream's end")
            : absl::CancelledError("the client cancelled the stream"));
}

void StreamCall::Abort(const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); });
}

void StreamCall::AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool waits = reading_ && !writing_ && pieces_.empty() && !ServersTurn();
    if (!accepted_ || (waits && last_progress_ <= quiet_since)) Fail(status);
  });
}

void StreamCall::OnAlarm() {
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { waiting_ = false; });
}

bool StreamCall::ServersTurn() const { return computing_ > 0 || waiting_ || awaits_room_; }

// Why the client is given up now; OK if it is not.
absl::Status StreamCall::CheckPatience(TimePoint now) {
  const Duration timeout = environment_.options.stream_idle_timeout;
  const auto ms = [](Duration duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  };
  if (writing_ && now - write_since_ >= timeout) {
    return absl::DeadlineExceededError(
        absl::StrCat("stream: the client took nothing for ", ms(timeout), " ms"));
  }
  if (ServersTurn()) {
    last_progress_ = now;
  } else if (now - last_progress_ >= timeout) {
    return absl::DeadlineExceededError(
        absl::StrCat("stream: the client sent and took nothing for ", ms(timeout), " ms"));
  }
  if (!overdraws_) return absl::OkStatus();
  // Others wait for the end of this piece, which a client that sends a byte now and then would put
  // off for ever.
  const Duration patience = environment_.options.PatienceFor(
      timeout, header_.HeldBytes(header_.limits.max_piece_bytes()));
  if (now - overdrawn_since_ < patience) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "stream: the server's budget is taken, and the client did not send a row and take its result "
      "within ",
      ms(patience), " ms"));
}

void StreamCall::OnIdleAlarm() {
  const TimePoint now = environment_.clock.Now();
  bool finished = false;
  Record([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    watched_ = false;
    finished = finished_;
    if (finished) return;
    const absl::Status status = CheckPatience(now);
    if (status.ok()) return;
    abandoned_ = true;
    Fail(status);
  });
  if (finished) OnIdleAfterFinish(now);
}

// The driver is gone, and what is left is the client's: to take the trailer or the status.
void StreamCall::OnIdleAfterFinish(TimePoint now) {
  grpc_call* call = nullptr;
  Duration left{};
  {
    MutexLock lock(mutex_);
    if (done_ || watched_) return;
    left = last_progress_ + environment_.options.stream_idle_timeout - now;
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

void StreamCall::OnComputed(std::uint64_t number, Completion completion) {
  if (completion.status.ok()) metrics_->RecordStages(completion.stages);
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
  environment_.active.Remove(this);
  if (delivered_ != nullptr) delivered_->open_streams.fetch_sub(1, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    done_ = true;
  }
  // What a client that left was told, nobody heard.
  if (code_ != absl::StatusCode::kOk && context_.IsCancelled()) {
    code_ = deadline_ <= environment_.clock.Now() ? absl::StatusCode::kDeadlineExceeded
                                                  : absl::StatusCode::kCancelled;
  }
  const Duration duration = environment_.clock.Now() - arrival_;
  metrics_->RecordRequest(Method::kNormalizeStream, code_, duration);
  if (environment_.request_log != nullptr) Log(duration);
}

// What events bring.

absl::Status StreamCall::ReadMessage(StreamPartView& part, std::vector<grpc::Slice>& slices) {
  environment_.metrics.AddPayload(static_cast<std::int64_t>(incoming_.Length()), 0);
  if (delivered_ != nullptr) delivered_->Add(static_cast<std::int64_t>(incoming_.Length()));
  const absl::Status uncompressed = CheckUncompressed(context_);
  if (!uncompressed.ok()) return uncompressed;
  if (!incoming_.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  incoming_.Clear();
  absl::StatusOr<StreamPartView> decoded = DecodeStreamRequest(ViewsOf(slices));
  if (!decoded.ok()) return decoded.status();
  part = *std::move(decoded);
  return absl::OkStatus();
}

absl::Status StreamCall::TakeHeader(const StreamPartView& part) {
  if (part.kind != StreamPartView::Kind::kHeader) {
    return absl::InvalidArgumentError("part: wanted the header in the first message");
  }
  has_header_ = true;
  if (part.size > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header: ", part.size, " bytes, wanted at most ", kMaxHeaderBytes));
  }
  const absl::StatusOr<NormalizeRequestView> view = DecodeNormalizeRequest(part.bytes);
  if (!view.ok()) return view.status();
  StreamLimits limits = environment_.options.stream;
  limits.max_message_bytes = environment_.options.max_request_bytes;
  absl::StatusOr<StreamHeader> header = CheckStreamHeader(*view, environment_.registry, limits);
  if (!header.ok()) return header.status();
  header_ = *std::move(header);
  metrics_ = &header_.model->metrics();
  const std::int64_t chunk_bytes =
      std::min(header_.limits.max_chunk_bytes(), header_.input_bytes());
  const CallerName caller(context_);
  holder_ = HolderOf(caller.caller());
  auto lease = environment_.admission.AdmitStream(header_.HeldBytes(chunk_bytes), *metrics_,
                                                  caller.caller());
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  return absl::OkStatus();
}

absl::Status StreamCall::Accept() {
  input_.emplace(header_.Pieces(), header_.limits.min_kept_bytes);
  accepted_ = true;
  return absl::OkStatus();
}

absl::Status StreamCall::TakeChunk(const StreamPartView& part,
                                   const std::vector<grpc::Slice>& slices) {
  if (part.kind != StreamPartView::Kind::kChunk) {
    return absl::InvalidArgumentError("part: wanted a chunk after the header");
  }
  if (part.size > header_.limits.max_chunk_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("chunk: ", part.size, " bytes, wanted at most ",
                                                   header_.limits.max_chunk_bytes()));
  }
  const std::int64_t end = input_->received_bytes() + part.size;
  if (end > header_.input_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", end, " bytes or more, wanted ", header_.WantedData()));
  }
  inside_bytes_ += part.size;
  last_chunk_bytes_ = part.size;
  std::size_t message_bytes = 0;
  for (const grpc::Slice& received : slices) message_bytes += received.size();
  const bool worth_keeping = 2 * static_cast<std::size_t>(part.size) >= message_bytes;
  auto slice = slices.begin();
  for (const ConstBytes view : part.bytes) {
    // Views come in the order of the slices, each within one of them.
    const auto* data = reinterpret_cast<const std::uint8_t*>(view.data());
    while (data < slice->begin() || data >= slice->end()) ++slice;
    input_->Add(*slice, view, received_, worth_keeping);
  }
  for (ReceivedPiece& piece : received_) {
    const std::uint64_t number = NextPiece();
    Piece& added = pieces_.emplace_back();
    added.input_bytes = piece.geometry.InputBytes();
    added.bytes = piece.geometry.bytes;
    added.request = MakeRequest(number, std::move(piece));
    added.id = added.request->id;
  }
  received_.clear();
  return absl::OkStatus();
}

absl::Status StreamCall::TakeEnd() const {
  if (!accepted_) return absl::InvalidArgumentError("part: no message, wanted the header");
  if (input_->received_bytes() < header_.input_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", input_->received_bytes(), " bytes, wanted ", header_.WantedData()));
  }
  return absl::OkStatus();
}

std::unique_ptr<Request> StreamCall::MakeRequest(std::uint64_t number, ReceivedPiece piece) {
  auto request = std::make_unique<Request>();
  request->id = environment_.next_request_id.fetch_add(1, std::memory_order_relaxed);
  request->model = header_.model;
  request->dtype = header_.inputs.dtype;
  request->precision = header_.precision;
  request->geometry = piece.geometry;
  request->inputs = std::move(piece.inputs);
  request->input_owner = std::move(piece.owner);
  request->arrival = environment_.clock.Now();
  request->deadline = deadline_;
  request->priority = header_.queueing.priority;
  request->queue_timeout = header_.queueing.timeout;
  request->holder = holder_;
  request->may_be_dropped = false;  // The stream was admitted as a whole.
  request->stages[Stage::kDecode] = std::exchange(decode_time_, Duration(0));
  // As for a Normalize call: a matrix product's cost is not in proportion to its bytes.
  request->may_run_inline = header_.model->linear() == nullptr;
  request->cancelled = Borrow(&cancelled_);
  request->done = [this, number](Completion completion) {
    OnComputed(number, std::move(completion));
  };
  return request;
}

absl::Status StreamCall::TakeResult(std::uint64_t number, Completion& completion) {
  Piece& piece = pieces_[number - first_piece_];
  if (static_cast<std::int64_t>(completion.output.size()) != piece.bytes) {
    return absl::InternalError(
        absl::StrCat("output: ", completion.output.size(), " bytes, wanted ", piece.bytes));
  }
  piece.output = std::make_shared<Buffer>(std::move(completion.output));
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
  cancelled_.store(true, std::memory_order_relaxed);
}

void StreamCall::Log(Duration duration) {
  const RequestLog::Reason reason = environment_.request_log->Pick(duration);
  if (reason == RequestLog::Reason::kNone) return;
  const Model* model = header_.model.get();
  StageTimes stages;
  BatchInfo batch;
  {
    MutexLock lock(mutex_);
    stages = stages_;
    batch = batch_;
  }
  environment_.request_log->Write(
      reason, {"NormalizeStream", ids_, model != nullptr ? absl::string_view(model->name()) : "",
               model != nullptr ? model->version() : 0, code_, duration, stages, batch,
               context_.peer(), header_.input_bytes()});
}

}  // namespace normd

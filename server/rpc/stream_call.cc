#include "server/rpc/stream_call.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/codec.h"
#include "server/rpc/status.h"

namespace normd {
namespace {

// A header is a name, a few numbers and a shape.
constexpr std::int64_t kMaxHeaderBytes = 4096;
// Of an answer: what a client takes whose limits are gRPC's own, and still in a cache.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
// Until a full queue is asked again. Long against a batch, short against a time-out.
constexpr auto kQueueFullWait = std::chrono::milliseconds(5);

template <typename T>
std::shared_ptr<T> Borrow(T* object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), object);
}

void DropShare(void* share) { delete static_cast<std::shared_ptr<Buffer>*>(share); }

// A slice of `size` bytes of `buffer`, which it keeps.
grpc::Slice SharingSlice(std::shared_ptr<Buffer> buffer, std::int64_t offset, std::int64_t size) {
  std::byte* data = buffer->data() + offset;
  auto share = std::make_unique<std::shared_ptr<Buffer>>(std::move(buffer));
  grpc::Slice slice(data, static_cast<std::size_t>(size), DropShare, share.get());
  (void)share.release();  // The slice's from here on.
  return slice;
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
      metrics_(&environment.metrics.ForNoModel()) {}

void StreamCall::Start() {
  bool drive = false;
  {
    MutexLock lock(mutex_);
    drive = BecomeDriver();
  }
  if (drive) Drive();
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
  bool drive = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    last_progress_ = environment_.clock.Now();
    inside_bytes_ -= std::exchange(writing_bytes_, 0);
    if (!ok) Fail(absl::CancelledError("the client left while it was answered"));
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::OnCancel() {
  Abort(deadline_ <= environment_.clock.Now()
            ? absl::DeadlineExceededError("the deadline passed before the stream's end")
            : absl::CancelledError("the client cancelled the stream"));
}

void StreamCall::Abort(const absl::Status& status) {
  bool drive = false;
  {
    MutexLock lock(mutex_);
    Fail(status);
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::OnAlarm() {
  bool drive = false;
  {
    MutexLock lock(mutex_);
    waiting_ = false;
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::OnIdleAlarm() {
  const Duration timeout = environment_.options.stream_idle_timeout;
  bool drive = false;
  {
    MutexLock lock(mutex_);
    watched_ = false;
    const TimePoint now = environment_.clock.Now();
    if (computing_ > 0 || waiting_) last_progress_ = now;  // The server's turn.
    if (now - last_progress_ >= timeout) {
      abandoned_ = status_.ok();
      Fail(absl::DeadlineExceededError(absl::StrCat(
          "stream: the client sent and took nothing for ",
          std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(), " ms")));
    }
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::OnComputed(std::uint64_t number, Completion completion) {
  if (completion.status.ok()) metrics_->RecordStages(completion.stages);
  bool drive = false;
  {
    MutexLock lock(mutex_);
    --computing_;
    if (status_.ok()) {
      const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return TakeResult(number, completion);
      };
      const absl::Status status = completion.status.ok() ? CatchAll(take) : completion.status;
      if (!status.ok()) Fail(status);
    }
    drive = BecomeDriver();
  }
  if (drive) Drive();
}

void StreamCall::OnDone() {
  const std::shared_ptr<StreamCall> self = std::move(self_);
  environment_.active.Remove(this);
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
  if (!incoming_.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  incoming_.Clear();
  absl::InlinedVector<ConstBytes, 8> views;
  for (const grpc::Slice& slice : slices) {
    views.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  absl::StatusOr<StreamPartView> decoded = DecodeStreamRequest(views);
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
  auto lease = environment_.admission.Admit(header_.BudgetBytes(), *metrics_);
  if (!lease.ok()) return lease.status();
  lease_ = *std::move(lease);
  return absl::OkStatus();
}

absl::Status StreamCall::Accept() {
  input_.emplace(header_.Pieces());
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
  if (end > header_.geometry.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", end, " bytes or more, wanted ", header_.geometry.bytes,
                     " for shape ", header_.shape.ToString(), " of ", norm::Name(header_.dtype)));
  }
  inside_bytes_ += part.size;
  auto slice = slices.begin();
  for (const ConstBytes view : part.bytes) {
    // Views come in the order of the slices, each within one of them.
    const auto* data = reinterpret_cast<const std::uint8_t*>(view.data());
    while (data < slice->begin() || data >= slice->end()) ++slice;
    input_->Add(*slice, view, received_);
  }
  for (ReceivedPiece& piece : received_) {
    const std::uint64_t number = first_piece_ + pieces_.size();
    Piece& added = pieces_.emplace_back();
    added.bytes = piece.geometry.bytes;
    added.request = MakeRequest(number, std::move(piece));
    added.id = added.request->id;
  }
  received_.clear();
  return absl::OkStatus();
}

absl::Status StreamCall::TakeEnd() const {
  if (!accepted_) return absl::InvalidArgumentError("part: no message, wanted the header");
  if (input_->received_bytes() < header_.geometry.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", input_->received_bytes(), " bytes, wanted ", header_.geometry.bytes,
                     " for shape ", header_.shape.ToString(), " of ", norm::Name(header_.dtype)));
  }
  return absl::OkStatus();
}

std::unique_ptr<Request> StreamCall::MakeRequest(std::uint64_t number, ReceivedPiece piece) {
  auto request = std::make_unique<Request>();
  request->id = environment_.next_request_id.fetch_add(1, std::memory_order_relaxed);
  request->model = header_.model;
  request->dtype = header_.dtype;
  request->geometry = piece.geometry;
  request->inputs.push_back(std::move(piece.views));
  request->input_owner = std::move(piece.owner);
  request->arrival = environment_.clock.Now();
  request->deadline = deadline_;
  request->priority = header_.queueing.priority;
  request->queue_timeout = header_.queueing.timeout;
  request->stages[Stage::kDecode] = std::exchange(decode_time_, Duration(0));
  request->may_run_inline = true;
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

// The driver.

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
      // After the last operation the call may be gone: `driving_` stays, so nobody drives again.
    }
    switch (step.kind) {
      case Step::Kind::kNone: return;
      case Step::Kind::kWatch: Watch(step.until_idle); break;
      case Step::Kind::kPush: Push(step); break;
      case Step::Kind::kRead: StartRead(&incoming_); break;
      case Step::Kind::kWrite: StartWrite(&outgoing_); break;
      case Step::Kind::kWriteLast:
        StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
        return;
      case Step::Kind::kCancel:
        if (alarm_ != nullptr) alarm_->Cancel();
        // The status waits behind the message that the client does not take.
        if (step.abandon) context_.TryCancel();
        for (const std::uint64_t id : step.ids) environment_.queue.Cancel(id);
        break;
      case Step::Kind::kFinish:
        Finish(ToGrpc(step.status, environment_.options.retry_after, context_, ids_.request_id));
        return;
    }
  }
}

void StreamCall::Next(Step& step) {
  if (finished_) return;
  if (!status_.ok()) return NextOfFailed(step);
  // The transport is kept busy before the lanes: a push may compute the piece before it returns.
  const Duration timeout = environment_.options.stream_idle_timeout;
  if (accepted_ && !watched_ && timeout > Duration(0)) {
    step.kind = Step::Kind::kWatch;
    step.until_idle = last_progress_ + timeout - environment_.clock.Now();
    watched_ = true;
  } else if (MayRead()) {
    step.kind = Step::Kind::kRead;
    reading_ = true;
  } else if (!writing_ && NextWrite(step)) {
    writing_ = true;
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
    step.abandon = abandoned_ && writing_;
    for (std::size_t i = 0; i < pushed_; ++i) {
      if (pieces_[i].output == nullptr) step.ids.push_back(pieces_[i].id);
    }
    // Destroyed with the step, after the lock is released.
    step.pieces.swap(pieces_);
    step.input.swap(input_);
  } else if (computing_ == 0 && !writing_ && !waiting_) {
    step.kind = Step::Kind::kFinish;
    step.status = status_;
    finished_ = true;
    // As the client sees it.
    code_ = absl::IsUnknown(status_) ? absl::StatusCode::kInternal : status_.code();
  }
}

bool StreamCall::MayRead() const {
  if (reading_ || half_closed_) return false;
  return !accepted_ ||
         inside_bytes_ + header_.limits.max_chunk_bytes() <= header_.limits.window_bytes;
}

bool StreamCall::NextWrite(Step& step) {
  if (!accepted_) return false;
  step.kind = Step::Kind::kWrite;
  if (!header_sent_) {
    header_sent_ = true;
    SetOutgoing({grpc::Slice(EncodeStreamHeader(header_))});
  } else if (!pieces_.empty() && pieces_.front().output != nullptr) {
    WriteChunk();
  } else if (half_closed_ && pieces_.empty()) {
    WriteTrailer();
    step.kind = Step::Kind::kWriteLast;
    finished_ = true;
  } else {
    step.kind = Step::Kind::kNone;
    return false;
  }
  return true;
}

void StreamCall::WriteChunk() {
  Piece& piece = pieces_.front();
  const std::int64_t left = piece.bytes - piece.sent_bytes;
  const std::int64_t size = std::min(left, kChunkBytes);
  // The last chunk takes the piece's own reference along.
  std::shared_ptr<Buffer> output = size == left ? std::move(piece.output) : piece.output;
  const grpc::Slice data = SharingSlice(std::move(output), piece.sent_bytes, size);
  SetOutgoing({grpc::Slice(EncodeStreamChunkHead(static_cast<std::size_t>(size))), data});
  writing_bytes_ = size;
  piece.sent_bytes += size;
  if (size < left) return;
  if (std::exchange(last_batch_, piece.batch_id) != piece.batch_id) ++batches_;
  pieces_.pop_front();
  ++first_piece_;
  --pushed_;
}

void StreamCall::WriteTrailer() {
  v1::NormalizeStreamResponse response;
  v1::NormalizeStreamTrailer& trailer = *response.mutable_trailer();
  v1::StageTimes& stages = *trailer.mutable_stages();
  stages.set_decode_ns(stages_[Stage::kDecode].count());
  stages.set_queue_ns(stages_[Stage::kQueue].count());
  stages.set_gather_ns(stages_[Stage::kGather].count());
  stages.set_copy_in_ns(stages_[Stage::kCopyIn].count());
  stages.set_compute_ns(stages_[Stage::kCompute].count());
  stages.set_copy_out_ns(stages_[Stage::kCopyOut].count());
  trailer.set_pieces(static_cast<std::int64_t>(first_piece_));
  trailer.set_batches(batches_);
  trailer.set_bytes(header_.geometry.bytes);
  SetOutgoing({grpc::Slice(response.SerializeAsString())});
}

void StreamCall::SetOutgoing(std::initializer_list<grpc::Slice> slices) {
  outgoing_ = grpc::ByteBuffer(slices.begin(), slices.size());
  environment_.metrics.AddPayload(0, static_cast<std::int64_t>(outgoing_.Length()));
}

void StreamCall::Push(Step& step) {
  const absl::Status status = environment_.queue.Push(step.request);
  if (status.ok()) return;
  {
    MutexLock lock(mutex_);
    --computing_;
    if (!status_.ok()) return;
    if (!absl::IsResourceExhausted(status)) return Fail(status);
    // The stream has its place in the budgets and waits for one in the queue.
    pieces_[--pushed_].request = std::move(step.request);
    waiting_ = true;
  }
  // A new one: this may be running in the old one's callback.
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

void StreamCall::Log(Duration duration) {
  const RequestLog::Reason reason = environment_.request_log->Pick(duration);
  if (reason == RequestLog::Reason::kNone) return;
  const Model* model = header_.model.get();
  MutexLock lock(mutex_);
  environment_.request_log->Write(
      reason, {"NormalizeStream", ids_, model != nullptr ? absl::string_view(model->name()) : "",
               model != nullptr ? model->version() : 0, code_, duration, stages_, batch_,
               context_.peer(), header_.geometry.bytes});
}

}  // namespace normd

// One NormalizeStream call.
//
// Its life: the handler creates it, calls Start once and returns it to gRPC. Events (a message
// arrived, one was sent, a piece is computed, a timer rang, the client left, a stop aborts it) are
// recorded under the lock. Then one thread at a time, the driver, acts on them: pushes a piece,
// reads on, writes the next chunk, finishes. So no two operations on the call race, none runs under
// the lock, and none comes after the last, Finish.
//
// Finish waits for every piece in the queue or in a lane, for the write in progress and for the
// alarm of a full queue. After it the driver touches nothing of the call: gRPC calls OnDone when
// the handlers have returned, and that drops the call's own reference.
//
// The budgets: the lease always has the bytes inside, and those of their output. Before each
// message the stream asks for room; without it, it waits in Admission's line and does not read.
// Everything else continues: received bytes are computed and sent.
//
// The client's turn is bounded in every state (see StreamPatience), also after Finish, until it has
// taken the end.
//
// The window: `inside_bytes_` are the received input bytes that are not yet answered, whether they
// lack the rest of their row, wait, are computed or their result waits for the client. The next
// message is read only when the largest chunk fits beside them. A piece and a chunk fit into the
// window together, so a stream without room is one whose client does not read.

#ifndef NORMD_SERVER_RPC_STREAM_CALL_H_
#define NORMD_SERVER_RPC_STREAM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/accept.h"
#include "server/accept/call_context.h"
#include "server/batching/admission.h"
#include "server/batching/request.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/piece_output.h"
#include "server/rpc/stream_input.h"
#include "server/rpc/stream_patience.h"
#include "wire/stream_part.h"

namespace normd {

class StreamCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public ActiveCalls::Stream,
                         public Admission::Waiter {
 public:
  // The arguments outlive the call.
  static std::shared_ptr<StreamCall> Create(const CallOptions& options, AcceptEnvironment& accept,
                                            grpc::CallbackServerContext& context);
  ~StreamCall() override = default;

  // Starts to read the first message, or ends the call without reading one if its caller may not
  // make it. Never blocks.
  void Start();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Abort(const absl::Status& status) override;
  void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) override;
  void OnRoom(bool overdraft) override;

 private:
  // A run of whole rows in progress.
  struct Piece {
    std::uint64_t id = 0;
    Geometry geometry;
    std::unique_ptr<Request> request;   // Until it is pushed.
    std::optional<PieceOutput> output;  // Once computed.
    std::int64_t sent_bytes = 0;        // Handed to gRPC.
    std::int64_t batch_id = 0;
  };
  // The driver's next action, and objects to drop once the lock is released.
  struct Step {
    enum class Kind {
      kNone,
      kWatch,
      kSettle,
      kAwaitRoom,
      kEndOverdraft,
      kPush,
      kRead,
      kWrite,
      kWriteLast,
      kCancel,
      kFinish
    };
    Kind kind = Kind::kNone;
    // Bytes that the lease gains or, below 0, returns; or the awaited step.
    std::int64_t bytes = 0;
    std::unique_ptr<Request> request;
    absl::Status status;
    Duration until_idle{};
    bool abandon = false;  // With kCancel: the client does not take what is being written.
    std::vector<std::uint64_t> ids;
    std::deque<Piece> pieces;
    std::optional<StreamInput> input;
  };

  StreamCall(const CallOptions& options, AcceptEnvironment& accept,
             grpc::CallbackServerContext& context);
  bool InternalInlineable() override { return true; }

  template <typename Facts>
  void Record(const Facts& facts);
  absl::Status ReadMessage(StreamPartView& part, std::vector<grpc::Slice>& slices);
  absl::Status TakeHeader(const StreamPartView& part);
  absl::Status Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeChunk(const StreamPartView& part, const std::vector<grpc::Slice>& slices)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Request> MakePiece(std::uint64_t number, ReceivedPiece piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();
  bool ServersTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnIdleAfterFinish(TimePoint now);
  void OnIdleAlarm();
  void OnComputed(std::uint64_t number, Completion&& completion);
  absl::Status TakeResult(std::uint64_t number, Completion& completion)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The driver, in stream_driver.cc. Whether the caller is it now; it then calls Drive after
  // releasing the lock.
  bool BecomeDriver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drive();
  void Next(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NextOfFailed(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextWatch(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextOfLease(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextRead(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextWrite(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::int64_t ResponseBytes(const Piece& piece);
  void WriteChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteTrailer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetOutgoing(std::initializer_list<grpc::Slice> slices);
  void Settle(std::int64_t bytes);
  std::uint64_t NextPiece() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return first_piece_ + pieces_.size();
  }
  void Push(Step& step);
  void Watch(Duration until_idle);

  // From the accepted request.
  const StreamLimits& limits() const { return accepted_request_.stream->limits; }
  std::int64_t input_bytes() const { return accepted_request_.geometry().InputBytes(); }
  // The bytes held for `bytes` of the inputs, including their part of the output.
  std::int64_t HeldBytes(std::int64_t bytes) const {
    return normd::HeldBytes(accepted_request_.geometry(), bytes);
  }

  const CallOptions& options_;
  AcceptEnvironment& accept_;
  grpc::CallbackServerContext& context_;
  CallContext call_;                  // Before the members that it outlives.
  std::shared_ptr<StreamCall> self_;  // Until OnDone.
  std::weak_ptr<StreamCall> weak_;    // weak: for the idle alarm, which the call does not wait for.

  // The read and the write in progress: after asking gRPC for one, do not touch its buffer until
  // gRPC says that it is done.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  bool has_header_ = false;

  AcceptedRequest accepted_request_;  // Constant once `accepted_` is set, but for the lease.
  // Used by the driver: the bytes inside, with their output.
  Admission::Lease& lease_ = accepted_request_.lease;

  Mutex mutex_;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool accepted_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool header_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t response_bytes_ ABSL_GUARDED_BY(mutex_) =
      0;                                            // The inputs' bytes that the write answers.
  Duration decode_time_ ABSL_GUARDED_BY(mutex_){};  // Since a piece took it over.
  std::int64_t inside_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t leased_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // The lease's target.
  std::int64_t last_chunk_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool unsettled_ ABSL_GUARDED_BY(mutex_) = false;       // A message has come.
  bool awaits_room_ ABSL_GUARDED_BY(mutex_) = false;     // For the next message.
  bool has_room_ ABSL_GUARDED_BY(mutex_) = false;        // For one message.
  bool overdraft_over_ ABSL_GUARDED_BY(mutex_) = false;  // That piece's last chunk is sent.
  bool overdraws_ ABSL_GUARDED_BY(mutex_) = false;       // Until this piece is answered:
  std::uint64_t overdrawn_piece_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<StreamInput> input_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReceivedPiece> received_ ABSL_GUARDED_BY(mutex_);  // Kept for reuse.
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(mutex_);       // In order; not yet wholly written.
  std::uint64_t first_piece_ ABSL_GUARDED_BY(mutex_) = 0;  // The number of the first of them.
  std::size_t pushed_ ABSL_GUARDED_BY(mutex_) = 0;         // How many of them.
  std::int64_t computing_ ABSL_GUARDED_BY(mutex_) = 0;     // Pushed and not done.
  bool told_queue_ ABSL_GUARDED_BY(mutex_) = false;        // To cancel waiting pieces.
  std::unique_ptr<grpc::Alarm> alarm_;  // The driver's. A full queue is asked again when it rings.
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> idle_alarm_;  // The driver's.
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;
  StreamPatience patience_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC's side of the call may be gone.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;

  // For the trailer and the log.
  StageTimes stages_ ABSL_GUARDED_BY(mutex_);
  BatchInfo batch_ ABSL_GUARDED_BY(mutex_);  // The batch of the last computed piece.
  std::int64_t last_batch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t batches_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t sent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Output bytes.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_CALL_H_

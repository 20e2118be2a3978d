// One NormalizeStream call.
//
// It is a driven stream (driven_stream.h) that joins four parts: StreamInput makes pieces of the
// messages, PieceLine has them until they are answered, StreamWindow keeps them within the budgets,
// and StreamPatience bounds the client's time. Each event tells the parts a fact, and each action
// of the driver follows from what they say.
//
// Finish waits for every piece in the queue or in a lane, for the write in progress and for the
// alarm of a full queue. The client's turn is bounded also after Finish, until it has taken the
// end.

#ifndef NORMD_SERVER_RPC_STREAM_CALL_H_
#define NORMD_SERVER_RPC_STREAM_CALL_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/accept/accept.h"
#include "server/batching/admission.h"
#include "server/batching/request.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/driven_stream.h"
#include "server/rpc/piece_line.h"
#include "server/rpc/stream_input.h"
#include "server/rpc/stream_patience.h"
#include "server/rpc/stream_window.h"
#include "wire/stream_part.h"

namespace normd {

class StreamCall final : public DrivenStream, public Admission::Waiter {
 public:
  // The arguments outlive the call.
  static std::shared_ptr<StreamCall> Create(const CallOptions& options, AcceptEnvironment& accept,
                                            grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) override;
  void OnRoom(bool overdraft) override;

 private:
  StreamCall(const CallOptions& options, AcceptEnvironment& accept,
             grpc::CallbackServerContext& context);

  // Whether the caller is the driver now.
  bool TakeMessage(bool ok);
  absl::Status ReadMessage(StreamPartView& part, std::vector<grpc::Slice>& slices);
  absl::Status TakeHeader(const StreamPartView& part);
  absl::Status Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeChunk(const StreamPartView& part, const std::vector<grpc::Slice>& slices)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Request> MakePiece(ReceivedPiece piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();
  bool ServersTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnIdleAfterFinish(TimePoint now);
  void OnIdleAlarm();
  void OnComputed(std::uint64_t number, Completion&& completion);
  void OnEnd() override;

  // The driver, in stream_driver.cc.
  Action Next() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextOfFailed() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextWatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextOfLease() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextPush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action Abandon(bool abandon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAbandoned(bool abandon);
  void SetOutgoing(std::initializer_list<grpc::Slice> slices);
  void Settle(std::int64_t bytes);
  void Push(std::unique_ptr<Request> request);
  void Watch(Duration until_idle);

  // While the stream has not failed.
  bool accepted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return input_.has_value(); }

  const CallOptions& options_;
  std::weak_ptr<StreamCall> weak_;  // weak: for the idle alarm, which the call does not wait for.

  // The read and the write in progress: after asking gRPC for one, do not touch its buffer until
  // gRPC says that it is done.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  bool has_header_ = false;

  AcceptedRequest accepted_request_;  // Constant once there is `input_`, but for the lease.
  // Used by the driver: the bytes inside, with their output.
  Admission::Lease& lease_ = accepted_request_.lease;
  std::unique_ptr<grpc::Alarm> alarm_;  // The driver's. A full queue is asked again when it rings.
  std::unique_ptr<grpc::Alarm> idle_alarm_;  // The driver's.
  // The driver's: the line and the input of a stream that failed, until they are dropped.
  std::deque<PieceLine::Piece> abandoned_pieces_;
  std::optional<StreamInput> abandoned_input_;

  std::optional<StreamInput> input_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReceivedPiece> received_ ABSL_GUARDED_BY(mutex_);  // Kept for reuse.
  Duration decode_time_ ABSL_GUARDED_BY(mutex_){};               // Since a piece took it over.
  PieceLine line_ ABSL_GUARDED_BY(mutex_);
  StreamWindow window_ ABSL_GUARDED_BY(mutex_);
  StreamPatience patience_ ABSL_GUARDED_BY(mutex_);
  bool header_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool queue_full_ ABSL_GUARDED_BY(mutex_) = false;  // `alarm_` is set.
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;     // `idle_alarm_` is set.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;   // The client does not take what is written.
  bool done_ ABSL_GUARDED_BY(mutex_) = false;        // gRPC's side of the call may be gone.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_CALL_H_

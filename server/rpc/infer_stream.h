// One ModelStreamInfer call: any number of requests, each of which is judged, admitted, queued and
// counted like a ModelInfer call, and a response for each, in order.
//
// A request that is refused or fails gets a response with the error, and the stream continues. It
// ends when the client has half-closed and the last response is sent, when the client leaves, when
// it does not take a response in time, and when a stop aborts it. Between requests the client may
// wait for any time, without holding budgets; a stop does not wait for it.
//
// At most kMaxInferStreamRequests are inside at once: the stream is then not read, so it takes no
// more while its client does not take responses.
//
// As in StreamCall, events record facts under the lock, and one thread at a time, the driver, acts
// on them, never under the lock. Finish comes after every request's `done`.

#ifndef NORMD_SERVER_RPC_INFER_STREAM_H_
#define NORMD_SERVER_RPC_INFER_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/call_context.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/infer_messages.h"
#include "server/rpc/message_exchange.h"

namespace normd {

// Per stream: enough to keep the lanes busy while the next ones arrive.
inline constexpr std::size_t kMaxInferStreamRequests = 64;

class InferStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          public ActiveCalls::Stream {
 public:
  // Both arguments outlive the call.
  static std::shared_ptr<InferStream> Create(CallEnvironment& environment,
                                             grpc::CallbackServerContext& context);
  ~InferStream() override = default;

  // Starts to read the first message, or ends the call without reading one if its caller may not
  // make it. Never blocks.
  void Start();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Abort(const absl::Status& status) override;
  void AbortIfQuiet(TimePoint quiet_since, const absl::Status& status) override;

 private:
  // One request and its response. Constant once it is pushed, except for the last members, which
  // its `done` sets; deleted when the response is sent.
  struct Turn {
    Turn(AcceptEnvironment& environment, CallArrival arrival, const InferCodec& codec)
        : call(environment, std::move(arrival)), exchange(environment, call, codec) {}

    CallContext call;  // Before the members that it outlives.
    MessageExchange exchange;

    bool answered = false;
    grpc::ByteBuffer response;
    StageTimes stages;
    BatchInfo batch;
  };
  using Turns = std::deque<std::unique_ptr<Turn>>;

  // The driver's next action, and objects to drop once the lock is released.
  struct Step {
    enum class Kind { kNone, kRead, kWrite, kCancel, kFinish };
    Kind kind = Kind::kNone;
    absl::Status status;
    std::vector<std::uint64_t> ids;
    Turns ended;
  };

  InferStream(CallEnvironment& environment, grpc::CallbackServerContext& context);
  bool InternalInlineable() override { return true; }

  template <typename Facts>
  void Record(const Facts& facts);
  void Take(std::unique_ptr<Turn> turn);
  absl::StatusOr<std::unique_ptr<Request>> Accept(Turn& turn);
  void OnComputed(Turn& turn, Completion&& completion);
  // Sets the response to a request that ends with `status`.
  void SetError(Turn& turn, const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Drive();
  void Next(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NextOfFailed(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read();
  void Write();
  void AwaitTaking(std::size_t bytes);
  // Tells the connection's watch whether the stream is reading.
  void SetReads(bool reads);
  // Counts the ended requests.
  static void RecordAll(const Turns& ended);

  CallEnvironment& environment_;
  grpc::CallbackServerContext& context_;
  const CallArrival arrival_;  // The stream's; each request has its own time and identity.
  CallContext call_;
  const InferCodec codec_{InferMessageKind::kStreamResponse};
  std::shared_ptr<InferStream> self_;  // Until OnDone.

  // The read and the write in progress: after asking gRPC for one, do not touch its buffer until
  // gRPC says that it is done.
  grpc::ByteBuffer incoming_;
  std::unique_ptr<Turn> outgoing_;
  std::optional<ResponseWatch::Entry> taking_;  // Set while a write or the end is in progress.
  bool refused_ = false;                        // By Start. Constant after it.

  Mutex mutex_;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_queue_ ABSL_GUARDED_BY(mutex_) = false;  // To cancel waiting requests.
  int computing_ ABSL_GUARDED_BY(mutex_) = 0;        // Requests whose `done` has not run.
  TimePoint last_progress_ ABSL_GUARDED_BY(mutex_);
  Turns turns_ ABSL_GUARDED_BY(mutex_);  // In order, without the one being written.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_STREAM_H_

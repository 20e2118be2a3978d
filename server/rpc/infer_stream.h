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
// Finish comes after every request's `done`.

#ifndef NORMD_SERVER_RPC_INFER_STREAM_H_
#define NORMD_SERVER_RPC_INFER_STREAM_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/accept/call_context.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/driven_stream.h"
#include "server/rpc/infer_messages.h"
#include "server/rpc/message_exchange.h"

namespace normd {

// Per stream: enough to keep the lanes busy while the next ones arrive.
inline constexpr std::size_t kMaxInferStreamRequests = 64;

class InferStream final : public DrivenStream {
 public:
  // Both arguments outlive the call.
  static std::shared_ptr<InferStream> Create(CallEnvironment& environment,
                                             grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
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

  InferStream(CallEnvironment& environment, grpc::CallbackServerContext& context,
              CallArrival arrival);

  void Take(std::unique_ptr<Turn> turn);
  absl::StatusOr<std::unique_ptr<Request>> Accept(Turn& turn);
  void OnComputed(Turn& turn, Completion&& completion);
  // Sets the response to a request that ends with `status`. False without memory for it.
  bool SetError(Turn& turn, const absl::Status& status);
  void CancelTurns();
  std::unique_ptr<Turn> TakeTurn();  // The first; null: there is none.

  Action Next() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action NextOfFailed() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read();
  void Write();
  void End(const absl::Status& status);
  void AwaitTaking(std::size_t bytes);
  void OnEnd() override;

  CallEnvironment& environment_;
  const CallArrival arrival_;  // The stream's; each request has its own time and identity.
  const InferCodec codec_{InferMessageKind::kStreamResponse};

  // The read and the write in progress: after asking gRPC for one, do not touch its buffer until
  // gRPC says that it is done.
  grpc::ByteBuffer incoming_;
  std::unique_ptr<Turn> outgoing_;
  std::optional<ResponseWatch::Entry> taking_;  // Set while a write or the end is in progress.

  int computing_ ABSL_GUARDED_BY(mutex_) = 0;  // Requests whose `done` has not run.
  TimePoint last_progress_ ABSL_GUARDED_BY(mutex_);
  Turns turns_ ABSL_GUARDED_BY(mutex_);  // In order, without the one being written.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_STREAM_H_

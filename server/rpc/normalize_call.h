// One unary call that normalizes, for any service, from the received slices to the response.
//
// Its life: the handler begins it and returns it to gRPC. From a successful Push on, the request's
// `done` may run on any thread, even before the handler has returned. The call is always ended
// through End, and there is exactly one such place for each outcome:
//
//   Start refuses (malformed, unknown model, budgets, full queue)   -> End in Start
//   Push accepted                                                   -> End in `done`, once by the
//                                                                      queue's promise
//
// gRPC calls OnCancel at most once, only after the handler has returned, at any time before OnDone,
// on any thread. It ends nothing itself: it sets the flag and asks the queue, which runs `done` if
// the request still waits. So `this` is valid in all of them, and for the request, whose views and
// flag point into this object, until `done` has returned.

#ifndef NORMD_SERVER_RPC_NORMALIZE_CALL_H_
#define NORMD_SERVER_RPC_NORMALIZE_CALL_H_

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/message_codec.h"
#include "server/rpc/message_exchange.h"
#include "server/rpc/unary_call.h"

namespace normd {

// The messages of one call. gRPC keeps the first two until OnDone; a refused request is cleared.
struct UnaryMessages {
  const grpc::ByteBuffer& request;
  grpc::ByteBuffer& response;
  const MessageCodec& codec;  // Outlives the call.
};

class NormalizeCall final : public UnaryCall {
 public:
  // The result of a service's handler. `environment` outlives the call. Never throws nor blocks.
  static grpc::ServerUnaryReactor* Begin(CallEnvironment& environment,
                                         grpc::CallbackServerContext& context, Method method,
                                         UnaryMessages messages);

  // For NewCall.
  NormalizeCall(CallEnvironment& environment, grpc::CallbackServerContext& context, Method method,
                UnaryMessages messages)
      : UnaryCall(environment, context, method),
        messages_(messages),
        exchange_(environment.accept, call_, messages.codec) {}

  void OnCancel() override;

 private:
  // Its reactions are short, so they need no other thread. gRPC's default passes them to one, which
  // costs every call a switch of threads.
  bool InternalInlineable() override { return true; }

  // Decodes, checks, admits and queues the request, or ends the call.
  void Start();
  absl::Status Accept();
  void Complete(Completion&& completion);
  void Record() override;

  // Constant after Start, which is over before `done` reads them (Push orders the two).
  const UnaryMessages messages_;
  MessageExchange exchange_;

  // For the request log, if there is one; written before End, read by OnDone.
  StageTimes stages_;
  BatchInfo batch_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_NORMALIZE_CALL_H_

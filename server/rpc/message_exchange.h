// One request, from gRPC's message to the message with its response: the common part of a unary
// call and a request in a stream of requests.

#ifndef NORMD_SERVER_RPC_MESSAGE_EXCHANGE_H_
#define NORMD_SERVER_RPC_MESSAGE_EXCHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/accept/exchange.h"
#include "server/rpc/message_codec.h"

namespace normd {

// Like Exchange.
class MessageExchange : public Exchange {
 public:
  // All of them outlive the exchange.
  MessageExchange(AcceptEnvironment& environment, CallContext& call, const MessageCodec& codec)
      : Exchange(environment, call), codec_(codec) {}

  // Decodes the message, which the request's data lies in. Errors are those of OpenMessage, of the
  // codec and of AcceptRequest.
  absl::StatusOr<std::unique_ptr<Request>> Accept(grpc::CallbackServerContext& context,
                                                  const grpc::ByteBuffer& message);
  absl::Status End(Completion& completion, grpc::ByteBuffer& response);

 private:
  absl::StatusOr<std::unique_ptr<Request>> Judge(grpc::CallbackServerContext& context,
                                                 const grpc::ByteBuffer& message);

  const MessageCodec& codec_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_MESSAGE_EXCHANGE_H_

// One request, from its message to the message with its response: the common part of a unary call
// and a request in a stream of requests.

#ifndef NORMD_SERVER_RPC_EXCHANGE_H_
#define NORMD_SERVER_RPC_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/accept/accept.h"
#include "server/accept/call_context.h"
#include "server/rpc/message_codec.h"

namespace normd {

// Not thread-safe: Accept is over before the request's `done` calls End.
class Exchange {
 public:
  // All of them outlive the exchange.
  Exchange(AcceptEnvironment& environment, CallContext& call, const MessageCodec& codec)
      : environment_(environment), call_(call), codec_(codec) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Decodes the message, and judges and admits its request. The caller sets its `done` and pushes
  // it; its data lies in `message` and in the exchange. Errors are those of OpenMessage, of the
  // codec and of AcceptRequest.
  absl::StatusOr<std::unique_ptr<Request>> Accept(grpc::CallbackServerContext& context,
                                                  const grpc::ByteBuffer& message);
  // Writes the response for the results, which takes the outputs' memory, and records the stages;
  // releases the regions in any case. Returns the request's final status. Never throws.
  absl::Status End(Completion& completion, grpc::ByteBuffer& response);

  // Called instead of End for a request that the queue did not take: releases the regions.
  void LetGo() { accepted_.in_regions = RegionTensors(); }

  std::uint64_t request_id() const { return request_id_; }  // 0 before it is accepted.
  const std::string& id() const { return id_; }             // The client's own; may be empty.

 private:
  absl::StatusOr<std::unique_ptr<Request>> Judge(grpc::CallbackServerContext& context,
                                                 const grpc::ByteBuffer& message);
  absl::Status TakeInflated(std::int64_t bytes);
  absl::Status Answer(Completion& completion, grpc::ByteBuffer& response);

  AcceptEnvironment& environment_;
  CallContext& call_;
  const MessageCodec& codec_;
  std::uint64_t request_id_ = 0;
  std::string id_;
  Admission::Lease inflated_;  // Holds a message's bytes while it is inflated.
  std::vector<grpc::Slice> slices_;
  std::shared_ptr<void> decoded_;  // As RequestDescription::owner.
  AcceptedRequest accepted_;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_EXCHANGE_H_

// A message that gRPC has received.

#ifndef NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_
#define NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/accept/environment.h"

namespace normd {

using MessageViews = absl::InlinedVector<ConstBytes, 8>;

struct InflateLimits {
  std::int64_t max_bytes;  // The limit of the inflated message.
  // Asked before this many more bytes are allocated; an error ends the inflating.
  absl::FunctionRef<absl::Status(std::int64_t bytes)> take;
};

// ResourceExhausted, in gRPC's words and without a retry hint, for a message that no call takes.
absl::Status CheckMessageBytes(const grpc::ByteBuffer& message, const AcceptLimits& limits);

// Fills `slices`, which own the bytes of `message`, the call's last, and returns views of them in
// order. A compressed message is inflated within `limits`; they apply to no other. Unimplemented
// for a message with the compressed flag whose call names no encoding or an unknown one.
// InvalidArgument if no whole message came: gRPC passes on a call whose client half-closed before
// its message was complete, and one whose client is gone. Otherwise as Inflate.
absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         const InflateLimits& limits,
                                         std::vector<grpc::Slice>& slices);

// Parses a message without a tensor. InvalidArgument when it is malformed or has more than
// kMaxControlBytes; otherwise as OpenMessage.
absl::Status ParseControl(grpc::CallbackServerContext& context, const grpc::ByteBuffer& message,
                          google::protobuf::MessageLite& parsed);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

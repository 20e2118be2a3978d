// A message as gRPC has received it.

#ifndef NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_
#define NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/inflate.h"

namespace normd {

// What one message may hold beside its tensor. gRPC refuses a larger one unread, with
// RESOURCE_EXHAUSTED and without a retry hint; between the two, the service says INVALID_ARGUMENT.
inline constexpr std::int64_t kMaxRequestOverheadBytes = 4096;

// A control request is a name and a number.
inline constexpr std::int64_t kMaxControlBytes = 4096;

using MessageViews = absl::InlinedVector<ConstBytes, 8>;

// Fills `slices`, which own the bytes of `message`, the call's last, and returns views of them in
// order. A compressed message is inflated within `limits`; they bound no other. Unimplemented for a
// message with the compressed flag whose call names no encoding or an unknown one; InvalidArgument
// where no whole message came: gRPC passes on a call whose client has half-closed before its
// message was there, and one whose client has gone, who hears nothing of it. Otherwise as Inflate.
absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         const InflateLimits& limits,
                                         std::vector<grpc::Slice>& slices);

// Parses a message that holds no tensor. InvalidArgument when it is malformed or has more than
// kMaxControlBytes; otherwise as OpenMessage.
absl::Status ParseControl(grpc::CallbackServerContext& context, const grpc::ByteBuffer& message,
                          google::protobuf::MessageLite& parsed);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

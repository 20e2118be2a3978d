// A message as gRPC has received it.

#ifndef NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_
#define NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace normd {

using MessageViews = absl::InlinedVector<ConstBytes, 8>;

// InvalidArgument where no whole message came: gRPC passes on a call whose client has half-closed
// before its message was there, and one whose client has gone, who hears nothing of it.
absl::Status CheckReceived(const grpc::ByteBuffer& message);

// Fills `slices`, which own the bytes of `message`, and returns views of them in order.
// Unimplemented or InvalidArgument for a message that says it is compressed (see
// CheckUncompressed), and as CheckReceived.
absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         std::vector<grpc::Slice>& slices);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_RECEIVED_MESSAGE_H_

#include "server/rpc/received_message.h"

#include "server/rpc/compression.h"
#include "wire/grpc_slices.h"

namespace normd {

absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         std::vector<grpc::Slice>& slices) {
  if (absl::Status status = CheckUncompressed(context); !status.ok()) return status;
  // gRPC passes on a call whose client has gone, or has half-closed, before its message was there.
  if (!message.Valid()) {
    return absl::CancelledError("request: no message came before the client's end of the call");
  }
  if (!message.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  return ViewsOf(slices);
}

}  // namespace normd

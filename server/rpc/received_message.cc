#include "server/rpc/received_message.h"

#include "server/rpc/compression.h"
#include "wire/grpc_slices.h"

namespace normd {

absl::Status CheckReceived(const grpc::ByteBuffer& message) {
  if (message.Valid()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "request: no whole message before the client's end of the call, wanted one");
}

absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         std::vector<grpc::Slice>& slices) {
  if (absl::Status status = CheckUncompressed(context); !status.ok()) return status;
  if (absl::Status status = CheckReceived(message); !status.ok()) return status;
  if (!message.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  return ViewsOf(slices);
}

}  // namespace normd

#include "server/rpc/received_message.h"

#include "server/rpc/compression.h"

namespace normd {

absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         std::vector<grpc::Slice>& slices) {
  if (absl::Status status = CheckUncompressed(context); !status.ok()) return status;
  if (!message.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message could not be decompressed");
  }
  MessageViews views;
  for (const grpc::Slice& slice : slices) {
    views.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  return views;
}

}  // namespace normd

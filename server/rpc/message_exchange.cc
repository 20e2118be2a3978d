#include "server/rpc/message_exchange.h"

#include <cstdint>
#include <utility>

#include "server/accept/message_limits.h"
#include "server/rpc/received_message.h"

namespace normd {

absl::StatusOr<std::unique_ptr<Request>> MessageExchange::Accept(
    grpc::CallbackServerContext& context, const grpc::ByteBuffer& message) {
  absl::StatusOr<std::unique_ptr<Request>> request = Judge(context, message);
  if (!request.ok()) {
    // The client may take its time to read the reason. gRPC would keep its message, which is no
    // constant there, until then.
    slices_.clear();
    const_cast<grpc::ByteBuffer&>(message).Clear();
    LetHeldGo();
  }
  return request;
}

absl::StatusOr<std::unique_ptr<Request>> MessageExchange::Judge(
    grpc::CallbackServerContext& context, const grpc::ByteBuffer& message) {
  absl::Status allowed = Receive(static_cast<std::int64_t>(message.Length()));
  if (allowed.ok()) allowed = CheckMessageBytes(message, environment_.limits);
  if (!allowed.ok()) return allowed;
  const auto take = [this](std::int64_t bytes) { return Hold(bytes); };
  const absl::StatusOr<MessageViews> views = OpenMessage(
      context, message, {environment_.limits.max_request_bytes + kMaxRequestOverheadBytes, take},
      slices_);
  if (!views.ok()) return views.status();
  absl::StatusOr<RequestDescription> description = codec_.Decode(*views);
  if (!description.ok()) {
    set_id(codec_.IdOf(*views));
    return description.status();
  }
  return Exchange::Accept(*std::move(description));
}

absl::Status MessageExchange::End(Completion& completion, grpc::ByteBuffer& response) {
  return Exchange::End(completion,
                       [&](ResponseDescription&& description) -> absl::StatusOr<std::int64_t> {
                         // grpc::ByteBuffer copies instead of moving.
                         grpc::ByteBuffer encoded = codec_.Encode(std::move(description));
                         response.Swap(&encoded);
                         return static_cast<std::int64_t>(response.Length());
                       });
}

}  // namespace normd

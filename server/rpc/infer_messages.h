// Converts between the Open Inference Protocol's ModelInfer messages and the accept path's
// descriptions.

#ifndef NORMD_SERVER_RPC_INFER_MESSAGES_H_
#define NORMD_SERVER_RPC_INFER_MESSAGES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/message_codec.h"
#include "wire/infer_message.h"

namespace normd {

// ModelInfer's messages, and those of ModelStreamInfer; see DescribeInferRequest.
class InferCodec final : public MessageCodec {
 public:
  explicit InferCodec(InferMessageKind responses = InferMessageKind::kResponse)
      : responses_(responses) {}

  absl::StatusOr<RequestDescription> Decode(absl::Span<const ConstBytes> slices) const override;
  std::string IdOf(absl::Span<const ConstBytes> slices) const override;
  grpc::ByteBuffer Encode(ResponseDescription&& response) const override;

 private:
  const InferMessageKind responses_;
};

// A ModelStreamInferResponse with the error of the request with this id.
grpc::ByteBuffer EncodeInferError(absl::string_view message, absl::string_view id);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_MESSAGES_H_

// Converts between the Open Inference Protocol's ModelInfer messages and the accept path's
// descriptions.

#ifndef NORMD_SERVER_RPC_INFER_MESSAGES_H_
#define NORMD_SERVER_RPC_INFER_MESSAGES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/model/registry.h"
#include "server/rpc/message_codec.h"
#include "wire/infer_message.h"

namespace normd {

// The version that a request names: digits, or empty for the model's choice (0). InvalidArgument,
// with `field`, for anything else.
absl::StatusOr<std::int64_t> VersionOf(absl::string_view field, absl::string_view text);
// The same, or the version that a version_alias of the model names; NotFound for an unknown alias.
absl::StatusOr<std::int64_t> FindVersion(const ModelRegistry& registry, absl::string_view model,
                                         absl::string_view field, absl::string_view text);

// ModelInfer's messages, and those of ModelStreamInfer. A request's parameters:
//   priority  1: high, 2: normal, 3: low; 0: normal
//   timeout   microseconds that it may wait for a lane; 0: no limit
// Others are ignored, except those that ask for something that the server does not have. A
// tensor's:
//   shared_memory_region, shared_memory_offset, shared_memory_byte_size: see RegionReference
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

// Converts between normd.v1's messages and the accept path's descriptions.

#ifndef NORMD_SERVER_RPC_NORM_MESSAGES_H_
#define NORMD_SERVER_RPC_NORM_MESSAGES_H_

#include <cstdint>
#include <string>

#include "server/accept/accept.h"
#include "server/accept/call_context.h"
#include "server/rpc/message_codec.h"
#include "wire/normalize_request.h"

namespace normd {

RequestDescription Describe(NormalizeRequestView&& view);

// Normalize's messages.
class NormalizeCodec final : public MessageCodec {
 public:
  absl::StatusOr<RequestDescription> Decode(absl::Span<const ConstBytes> slices) const override;
  grpc::ByteBuffer Encode(ResponseDescription&& response) const override;
};

// NormalizeStream's messages other than chunks, as NormalizeStreamResponses.
std::string EncodeStreamHeader(const Model& model, const AcceptedRequest& accepted);

struct StreamTotals {
  StageTimes stages;
  std::int64_t pieces = 0;
  std::int64_t batches = 0;
  std::int64_t bytes = 0;  // The outputs' bytes.
};
std::string EncodeStreamTrailer(const StreamTotals& totals);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_NORM_MESSAGES_H_

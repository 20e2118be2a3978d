// A protocol's messages for one unary method that normalizes.

#ifndef NORMD_SERVER_RPC_MESSAGE_CODEC_H_
#define NORMD_SERVER_RPC_MESSAGE_CODEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/accept/description.h"

namespace normd {

// Thread-safe.
class MessageCodec {
 public:
  virtual ~MessageCodec() = default;

  // Reads a request from the received `slices`; its inputs' data are views of them. InvalidArgument
  // if it is not a message of the protocol, Unimplemented for parts of the protocol that the server
  // does not have. AcceptRequest judges the values.
  virtual absl::StatusOr<RequestDescription> Decode(absl::Span<const ConstBytes> slices) const = 0;

  // The client's own id of a request that Decode has refused, as far as it can be read.
  virtual std::string IdOf(absl::Span<const ConstBytes> /*slices*/) const { return ""; }

  // Writes a response, which takes the outputs' memory.
  virtual grpc::ByteBuffer Encode(ResponseDescription&& response) const = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_MESSAGE_CODEC_H_

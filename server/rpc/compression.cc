#include "server/rpc/compression.h"

#include <cstdint>

#include "grpc/grpc.h"

// gRPC hands over such a message as if it were plain: of the flag it tells only here, and of an
// encoding that it does not know nothing. Its library exports the function without a public header.
std::uint32_t grpc_call_test_only_get_message_flags(grpc_call* call);

namespace normd {

absl::Status CheckUncompressed(grpc::CallbackServerContext& context) {
  constexpr std::uint32_t kCompressed = 0x80000000;  // GRPC_WRITE_INTERNAL_COMPRESS
  // A call that came over no transport has none of gRPC's.
  if (context.c_call() == nullptr ||
      (grpc_call_test_only_get_message_flags(context.c_call()) & kCompressed) == 0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "grpc-encoding: missing or unknown beside a message with the compressed flag, wanted an "
      "uncompressed message (grpc-encoding: identity)");
}

}  // namespace normd

// Messages that say they are compressed although nothing can inflate them.

#ifndef NORMD_SERVER_RPC_COMPRESSION_H_
#define NORMD_SERVER_RPC_COMPRESSION_H_

#include "absl/status/status.h"
#include "grpcpp/server_context.h"

namespace normd {

// Judges the message that was received last. Unimplemented, with the encoding that is taken, when
// it carries the compressed flag and the call names no encoding or an unknown one. The known ones
// are refused by gRPC itself (see server.cc).
absl::Status CheckUncompressed(grpc::CallbackServerContext& context);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_COMPRESSION_H_

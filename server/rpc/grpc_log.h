// gRPC's own log.

#ifndef NORMD_SERVER_RPC_GRPC_LOG_H_
#define NORMD_SERVER_RPC_GRPC_LOG_H_

namespace normd {

// Passes gRPC's log lines to spdlog's default logger, for the rest of the process: gRPC's own
// function writes to stderr and waits for its reader. Call it before gRPC is used.
void PassOnGrpcLog();

}  // namespace normd

#endif  // NORMD_SERVER_RPC_GRPC_LOG_H_

// The logs of gRPC and Protobuf.

#ifndef NORMD_SERVER_RPC_LIBRARY_LOG_H_
#define NORMD_SERVER_RPC_LIBRARY_LOG_H_

namespace normd {

// Passes the lines of both to spdlog's default logger, for the rest of the process, each on one
// line of printable ASCII: their own functions write to stderr, in a form of their own, and wait
// for its reader. Call it before gRPC is used.
void PassOnLibraryLogs();

}  // namespace normd

#endif  // NORMD_SERVER_RPC_LIBRARY_LOG_H_

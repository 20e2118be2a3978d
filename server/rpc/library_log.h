// The logs of gRPC and Protobuf.

#pragma once

namespace normd {

// Passes the lines of both to spdlog's default logger, for the rest of the process, each on one
// line of printable ASCII: their own functions write to stderr, in a form of their own, and wait
// for its reader. Call it before gRPC is used.
void PassOnLibraryLogs();

}  // namespace normd

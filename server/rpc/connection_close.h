// The end of the connections, before gRPC's.

#ifndef NORMD_SERVER_RPC_CONNECTION_CLOSE_H_
#define NORMD_SERVER_RPC_CONNECTION_CLOSE_H_

#include "base/clock.h"

namespace normd {

// Ends this process's TCP sockets on the local `port`: stops the listening one, and closes the
// connections for reading once their clients have what was sent, or when `grace` is over. gRPC
// takes that for the clients' leaving. A call on its way meets a closed connection, which every
// client calls UNAVAILABLE and may retry elsewhere.
//
// gRPC 1.51 says CANCELLED to each call that arrives while a server shuts down and its connections
// still live, and has no way to end these first: https://github.com/grpc/grpc/issues/41785.
void CloseConnections(int port, Duration grace);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CONNECTION_CLOSE_H_

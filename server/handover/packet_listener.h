// A unix socket for connections of packets.

#ifndef NORMD_SERVER_HANDOVER_PACKET_LISTENER_H_
#define NORMD_SERVER_HANDOVER_PACKET_LISTENER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "server/net/listener.h"

namespace normd {

struct PacketListener {
  Descriptor socket;                 // Does not block.
  std::unique_ptr<SocketPath> path;  // Its place in the file system.
};

// Listens at `address`, "unix:///path", for its owner alone (0600). As with Listen's unix sockets,
// a socket without a listener is replaced; Unavailable if it has one, or if the path is something
// else.
absl::StatusOr<PacketListener> ListenForPackets(const std::string& address);

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_PACKET_LISTENER_H_

// A unix socket that takes connections of packets.

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

// At `address`, "unix:///path", for its owner alone (0600). As Listen's unix sockets, one that
// nobody listens at any more is replaced; Unavailable when somebody does, or when something else
// has its place.
absl::StatusOr<PacketListener> ListenForPackets(const std::string& address);

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_PACKET_LISTENER_H_

// Sockets that listen.

#ifndef NORMD_SERVER_NET_LISTENER_H_
#define NORMD_SERVER_NET_LISTENER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/descriptor.h"

namespace normd {

// What one listen address stands for: a socket for each address that its host has. They do not
// block, and no other process can listen beside them (no SO_REUSEPORT).
struct Listener {
  std::vector<Descriptor> sockets;
  int port = 0;
  // The last so many sockets are the admin listener's (ConnectionOrigin).
  std::size_t admin_sockets = 0;
};

// `address` is host:port; host is a name, an IPv4 address or an IPv6 address in brackets. 0.0.0.0
// and [::] stand for every address of both families. Port 0 takes a free one. Unavailable, with the
// address and the system's reason, when none of the host's addresses can be bound.
absl::StatusOr<Listener> Listen(const std::string& address);

}  // namespace normd

#endif  // NORMD_SERVER_NET_LISTENER_H_

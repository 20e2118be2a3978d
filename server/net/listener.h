// Sockets that listen.

#ifndef NORMD_SERVER_NET_LISTENER_H_
#define NORMD_SERVER_NET_LISTENER_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace normd {

// A unix socket's place in the file system, which it leaves when this goes, unless another socket
// has taken it.
class SocketPath {
 public:
  // `path` is there.
  explicit SocketPath(std::string path);
  ~SocketPath();
  SocketPath(const SocketPath&) = delete;
  SocketPath& operator=(const SocketPath&) = delete;

 private:
  const std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// What listen addresses stand for: a socket for each address that a host has. They do not block,
// and no other process can listen beside them (no SO_REUSEPORT).
struct Listener {
  std::vector<Descriptor> sockets;
  std::string address;  // As it was given, with the ports in use.
  int port = 0;         // The first; 0 where all are unix sockets.
  // The last so many sockets are the admin listener's (ConnectionOrigin).
  std::size_t admin_sockets = 0;
  std::vector<std::unique_ptr<SocketPath>> paths = {};  // Of unix sockets.
};

// The path of "unix:/path" or "unix:///path", which begins with a slash; empty for anything else.
std::string UnixPathOf(const std::string& address);

// `address` is a unix socket's (UnixPathOf), or host:port; host is a name, an IPv4 address or an
// IPv6 address in brackets. 0.0.0.0 and [::] stand for every address of both families. Port 0 takes
// a free one. Unavailable, with the address and the system's reason, when none of the host's
// addresses can be bound.
//
// A unix socket is its owner's alone (0600), before anybody can connect. One that nobody listens at
// any more is replaced; Unavailable when somebody does, or when something else has its place.
absl::StatusOr<Listener> Listen(const std::string& address);

// The same of several addresses with commas between them: at all of them or at none.
absl::StatusOr<Listener> ListenAtAll(const std::string& addresses);

}  // namespace normd

#endif  // NORMD_SERVER_NET_LISTENER_H_

// Listening sockets.

#ifndef NORMD_SERVER_NET_LISTENER_H_
#define NORMD_SERVER_NET_LISTENER_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace normd {

// A unix socket's path, which is removed with this object unless another socket has taken it.
class SocketPath {
 public:
  // `path` exists.
  explicit SocketPath(std::string path);
  ~SocketPath();
  SocketPath(const SocketPath&) = delete;
  SocketPath& operator=(const SocketPath&) = delete;

 private:
  const std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// The sockets of listen addresses, one for each address of a host. They do not block, and no other
// process can listen beside them (no SO_REUSEPORT).
struct Listener {
  std::vector<Descriptor> sockets;
  std::string address;  // As given, with the ports in use.
  int port = 0;         // The first; 0 if all are unix sockets.
  // This many sockets at the end are the admin listener's (ConnectionOrigin).
  std::size_t admin_sockets = 0;
  std::vector<std::unique_ptr<SocketPath>> paths = {};  // The unix sockets' paths.
};

// The path of "unix:/path" or "unix:///path", which begins with a slash; empty for anything else.
std::string UnixPathOf(const std::string& address);

// `address` is a unix socket's (UnixPathOf), or host:port; host is a name, an IPv4 address or an
// IPv6 address in brackets. 0.0.0.0 and [::] stand for every address of both families. Port 0 takes
// a free one. Unavailable, with `flag`, the address and the system's reason, when none of the
// host's addresses can be bound.
//
// A unix socket is for its owner alone (0600), before anybody can connect. A socket without a
// listener is replaced; Unavailable if it has one, or if the path is something else.
absl::StatusOr<Listener> Listen(const std::string& address, absl::string_view flag = "listen");

// The same for several addresses, separated by commas: listens at all of them or at none.
absl::StatusOr<Listener> ListenAtAll(const std::string& addresses,
                                     absl::string_view flag = "listen");

}  // namespace normd

#endif  // NORMD_SERVER_NET_LISTENER_H_

#include "server/net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/net/socket_calls.h"

namespace normd {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::Status Unavailable(const std::string& address, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat(address, " cannot be bound: ", reason));
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

// An invalid descriptor, with errno, when it is impossible to listen at `address`.
Descriptor ListenAt(const sockaddr* address, socklen_t size, bool both_families) {
  Descriptor socket(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return {};
  SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted connections inherit it.
  SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (address->sa_family == AF_INET6) {
    SetOption(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  }
  if (bind(socket.get(), address, size) != 0) return {};
  if (listen(socket.get(), SOMAXCONN) != 0) return {};
  return socket;
}

int PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  // Both families have the port in the same place.
  sockaddr_in any;
  std::memcpy(&any, &address, sizeof(any));
  return ntohs(any.sin_port);
}

// Whether some process listens at `address`, as `probe` finds.
bool IsServed(const Descriptor& probe, const sockaddr_un& address) {
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  return errno != ECONNREFUSED && errno != ENOENT;  // A full queue belongs to a listener.
}

// Makes room at `path` if it only has a socket without a listener.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  const std::string shown = absl::StrCat("unix:", path);
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) return absl::OkStatus();  // bind reports the error.
  if (!S_ISSOCK(found.st_mode)) return Unavailable(shown, "something else than a socket is there");
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return Unavailable(shown, std::strerror(errno));
  if (IsServed(probe, address)) return Unavailable(shown, "another process listens there");
  if (unlink(path.c_str()) != 0) return Unavailable(shown, std::strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<Listener> ListenAtPath(const std::string& path) {
  const std::string shown = absl::StrCat("unix:", path);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Unavailable(shown, absl::StrCat("a path of ", path.size(), " bytes, wanted at most ",
                                           sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (absl::Status status = RemoveStale(path, address); !status.ok()) return status;
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid() ||
      bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Unavailable(shown, std::strerror(errno));
  }
  // Unread descriptors are closed by the thread that reads the bytes, and close(2) of a socket may
  // wait for its peer.
  RefuseDescriptors(socket.get());
  Listener listener;
  listener.paths.push_back(std::make_unique<SocketPath>(path));
  // Nobody can connect before listen, whatever its mode.
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return Unavailable(shown, std::strerror(errno));
  }
  listener.sockets.push_back(std::move(socket));
  return listener;
}

// Once an earlier socket has a port, later ones take the same.
void SetPort(sockaddr* address, int port) {
  const in_port_t network = htons(static_cast<in_port_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = network;
  }
}

}  // namespace

SocketPath::SocketPath(std::string path) : path_(std::move(path)) {
  struct stat found = {};
  if (lstat(path_.c_str(), &found) != 0) return;
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

SocketPath::~SocketPath() {
  struct stat found = {};
  if (lstat(path_.c_str(), &found) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) unlink(path_.c_str());
}

std::string UnixPathOf(const std::string& address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) return "";
  absl::ConsumePrefix(&path, "//");
  return absl::StartsWith(path, "/") ? std::string(path) : "";
}

namespace {

absl::StatusOr<Listener> ListenAtOne(const std::string& address) {
  const std::string path = UnixPathOf(address);
  if (!path.empty()) {
    absl::StatusOr<Listener> at_path = ListenAtPath(path);
    if (at_path.ok()) at_path->address = address;
    return at_path;
  }
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Unavailable(address, "wanted host:port");
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  // A socket of IPv6 takes IPv4, too. Where IPv6 is off, IPv4 alone is left.
  const bool everywhere = host == "0.0.0.0" || host == "::";
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  Listener listener;
  std::string reason = "no such host";
  for (const char* name : {everywhere ? "::" : host.c_str(), "0.0.0.0"}) {
    addrinfo* found = nullptr;
    const int error = getaddrinfo(name, port.c_str(), &hints, &found);
    const AddressList list(found, freeaddrinfo);
    if (error != 0) reason = gai_strerror(error);
    for (addrinfo* at = error == 0 ? found : nullptr; at != nullptr; at = at->ai_next) {
      if (listener.port != 0) SetPort(at->ai_addr, listener.port);
      Descriptor socket = ListenAt(at->ai_addr, at->ai_addrlen, everywhere);
      if (!socket.valid()) {
        reason =
            absl::StrCat(std::strerror(errno), errno == EADDRINUSE ? " (is the port in use?)" : "");
        continue;
      }
      listener.port = PortOf(socket.get());
      listener.sockets.push_back(std::move(socket));
    }
    if (!everywhere || !listener.sockets.empty()) break;
  }
  if (listener.sockets.empty()) return Unavailable(address, reason);
  listener.address = absl::StrCat(address.substr(0, colon), ":", listener.port);
  return listener;
}

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& address, absl::string_view flag) {
  absl::StatusOr<Listener> one = ListenAtOne(address);
  if (one.ok()) return one;
  return absl::UnavailableError(absl::StrCat(flag, ": ", one.status().message()));
}

absl::StatusOr<Listener> ListenAtAll(const std::string& addresses, absl::string_view flag) {
  Listener all;
  for (const absl::string_view address : absl::StrSplit(addresses, ',')) {
    absl::StatusOr<Listener> one = Listen(std::string(address), flag);
    if (!one.ok()) return one.status();
    absl::StrAppend(&all.address, all.address.empty() ? "" : ",", one->address);
    if (all.port == 0) all.port = one->port;
    for (Descriptor& socket : one->sockets) all.sockets.push_back(std::move(socket));
    for (auto& path : one->paths) all.paths.push_back(std::move(path));
  }
  return all;
}

}  // namespace normd

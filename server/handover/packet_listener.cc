#include "server/handover/packet_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

absl::Status Unavailable(const std::string& address, const std::string& reason) {
  return absl::UnavailableError(
      absl::StrCat("shared_memory_listen: ", address, " cannot be bound: ", reason));
}

const sockaddr* Generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Makes room at the path if it only has a socket without a listener.
absl::Status RemoveStale(const std::string& shown, const sockaddr_un& address) {
  struct stat found = {};
  if (lstat(address.sun_path, &found) != 0) return absl::OkStatus();  // bind reports the error.
  if (!S_ISSOCK(found.st_mode)) return Unavailable(shown, "something else than a socket is there");
  const Descriptor probe(socket(AF_UNIX, kType, 0));
  if (!probe.valid()) return Unavailable(shown, std::strerror(errno));
  const bool refused = connect(probe.get(), Generic(address), sizeof(address)) != 0 &&
                       (errno == ECONNREFUSED || errno == ENOENT);
  if (!refused) return Unavailable(shown, "another process listens there");
  if (unlink(address.sun_path) != 0) return Unavailable(shown, std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PacketListener> ListenForPackets(const std::string& address) {
  const std::string path = UnixPathOf(address);
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(at.sun_path)) {
    return Unavailable(address, absl::StrCat("wanted unix:///path of at most ",
                                             sizeof(at.sun_path) - 1, " bytes"));
  }
  std::memcpy(at.sun_path, path.data(), path.size());
  if (absl::Status status = RemoveStale(address, at); !status.ok()) return status;
  PacketListener listener;
  listener.socket.Reset(socket(AF_UNIX, kType, 0));
  if (!listener.socket.valid() || bind(listener.socket.get(), Generic(at), sizeof(at)) != 0) {
    return Unavailable(address, std::strerror(errno));
  }
  listener.path = std::make_unique<SocketPath>(path);
  // Nobody can connect before listen, whatever its mode.
  if (chmod(at.sun_path, S_IRUSR | S_IWUSR) != 0 || listen(listener.socket.get(), SOMAXCONN) != 0) {
    return Unavailable(address, std::strerror(errno));
  }
  return listener;
}

}  // namespace normd

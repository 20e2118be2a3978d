#include "server/net/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/descriptor.h"
#include "spdlog/spdlog.h"

namespace normd {

void NotifyServiceManager(absl::string_view state) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr) return;
  const absl::string_view path = name;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return spdlog::warn("NOTIFY_SOCKET: {} bytes long, wanted 1 to {}", path.size(),
                        sizeof(address.sun_path) - 1);
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  if (path.front() == '@') address.sun_path[0] = '\0';
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (!socket.valid() || sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    spdlog::warn("NOTIFY_SOCKET: {} cannot be sent: {}", std::string(state), std::strerror(errno));
  }
}

}  // namespace normd

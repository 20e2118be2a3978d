#include "server/rpc/connection_close.h"

#include <dirent.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace normd {
namespace {

// Between two looks at the sockets.
constexpr auto kPause = std::chrono::milliseconds(5);

int LocalPort(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  switch (address.ss_family) {
    case AF_INET: return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    case AF_INET6: return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    default: return -1;
  }
}

bool Listens(int socket) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

// What the client's system has not acknowledged.
bool HasUnsent(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

// gRPC keeps its descriptors to itself, so the process is asked for them.
std::vector<int> SocketsOn(int port) {
  std::vector<int> sockets;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return sockets;
  while (const dirent* entry = readdir(folder.get())) {
    char* end = nullptr;
    const long descriptor = std::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0') continue;
    if (LocalPort(static_cast<int>(descriptor)) == port) {
      sockets.push_back(static_cast<int>(descriptor));
    }
  }
  return sockets;
}

}  // namespace

void CloseConnections(int port, Duration grace) {
  std::vector<int> listening;  // Which from now on look like connections.
  for (const int socket : SocketsOn(port)) {
    if (!Listens(socket)) continue;
    listening.push_back(socket);
    shutdown(socket, SHUT_RD);
  }
  const TimePoint end = std::chrono::steady_clock::now() + grace;
  // Until gRPC has closed them all: each in its turn, when what was sent to it has arrived.
  for (;;) {
    const bool last = std::chrono::steady_clock::now() >= end;
    bool any = false;
    for (const int socket : SocketsOn(port)) {
      if (std::find(listening.begin(), listening.end(), socket) != listening.end()) continue;
      any = true;
      if (last || !HasUnsent(socket)) shutdown(socket, SHUT_RD);
    }
    if (!any || last) return;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace normd

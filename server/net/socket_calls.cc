#include "server/net/socket_calls.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>

namespace normd {

void ControlEpoll(int epoll, int operation, int fd, std::uint64_t id, std::uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll, operation, fd, &event);
}

void SetLowWater(int socket, int bytes) {
  setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

std::int64_t UnreadBytes(int socket) {
  int bytes = 0;
  return ioctl(socket, FIONREAD, &bytes) == 0 ? bytes : 0;
}

bool HasUnsent(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void Send(int socket, const std::string& bytes) {
  (void)!send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<ucred> PeerProcess(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

bool MayUseSocket(const std::optional<ucred>& peer) {
  return peer.has_value() && (peer->uid == geteuid() || peer->uid == 0);
}

void RefuseDescriptors(int socket) {
#ifdef SO_PASSRIGHTS
  constexpr int kPassRights = SO_PASSRIGHTS;
#else
  constexpr int kPassRights = 83;
#endif
  const int off = 0;
  (void)setsockopt(socket, SOL_SOCKET, kPassRights, &off, sizeof(off));
}

void ShutDownUnread(int socket) {
  shutdown(socket, SHUT_RDWR);
  // TCP discards what is read with MSG_TRUNC. After the shutdown nothing more comes.
  constexpr std::size_t kAtOnce = std::size_t{64} << 20;
  while (recv(socket, nullptr, kAtOnce, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

}  // namespace normd

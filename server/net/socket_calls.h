// Calls of the system on sockets that do not block and whose failure shows later, when the socket
// is read or waited for.

#ifndef NORMD_SERVER_NET_SOCKET_CALLS_H_
#define NORMD_SERVER_NET_SOCKET_CALLS_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <cstdint>

#include <optional>
#include <string>

namespace normd {

// epoll_ctl with EPOLL_CTL_ADD, _MOD or _DEL: the events of `fd` carry `id`.
void ControlEpoll(int epoll, int operation, int fd, std::uint64_t id, std::uint32_t events);
// How many bytes must be there before the socket reads as readable.
void SetLowWater(int socket, int bytes);
// Received and not read.
std::int64_t UnreadBytes(int socket);
// Whether the peer's system has not acknowledged all that was sent.
bool HasUnsent(int socket);
// Sends as much as the socket takes at once, which for a few bytes at a connection's begin is all.
void Send(int socket, const std::string& bytes);
// Whose process is at the other end of a unix socket: that which connected.
std::optional<ucred> PeerProcess(int socket);
std::optional<uid_t> PeerUid(int socket);
// Has the system refuse messages with descriptors (SCM_RIGHTS) for the unix socket, and for those
// that it accepts. Before Linux 6.16 nothing happens.
void RefuseDescriptors(int socket);
// Ends a TCP connection on both sides. Whoever reads from it finds its end next, and not what was
// received before.
void ShutDownUnread(int socket);

}  // namespace normd

#endif  // NORMD_SERVER_NET_SOCKET_CALLS_H_

// System calls on non-blocking sockets whose failure shows later, when the socket is read or
// awaited.

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
// The number of bytes from which the socket is readable.
void SetLowWater(int socket, int bytes);
// Bytes received but not read.
std::int64_t UnreadBytes(int socket);
// Whether the peer's system has not acknowledged all sent bytes.
bool HasUnsent(int socket);
// Sends as much as the socket takes at once, which for a few bytes at a connection's beginning is
// all.
void Send(int socket, const std::string& bytes);
// The process at the other end of a unix socket: the one that connected.
std::optional<ucred> PeerProcess(int socket);
// Whether that process may use the socket, which is for this process's user, and for root, who may
// do anything. Its mode says so too, but the mode of a file may be changed.
bool MayUseSocket(const std::optional<ucred>& peer);
// Makes the system refuse messages with descriptors (SCM_RIGHTS) for the unix socket and for those
// that it accepts. Does nothing before Linux 6.16.
void RefuseDescriptors(int socket);
// Ends a TCP connection on both sides. A reader then finds its end, and not the bytes received
// before.
void ShutDownUnread(int socket);

}  // namespace normd

#endif  // NORMD_SERVER_NET_SOCKET_CALLS_H_

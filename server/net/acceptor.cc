#include "server/net/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include "server/net/socket_calls.h"

namespace normd {
namespace {

constexpr int kConnectionsAtOnce = 64;
// The pause of the listening sockets when the system has no resources for a connection.
constexpr Duration kPause = std::chrono::milliseconds(100);

int SpareDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Acceptor::Acceptor(Listener listener, int epoll, std::uint64_t first_id)
    : listener_(std::move(listener)),
      epoll_(epoll),
      first_id_(first_id),
      spare_(SpareDescriptor()) {
  SetListening(true);
}

void Acceptor::SetListening(bool on) {
  for (std::size_t i = 0; i < listener_.sockets.size(); ++i) {
    ControlEpoll(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.sockets[i].get(),
                 first_id_ + i, EPOLLIN);
  }
}

void Acceptor::Stop() {
  for (const Descriptor& listener : listener_.sockets) shutdown(listener.get(), SHUT_RD);
}

void Acceptor::Resume(TimePoint now) {
  if (now < resume_at_) return;
  resume_at_ = kNever;
  SetListening(true);
}

int Acceptor::Accept(std::uint64_t id, const Admit& admit) {
  const std::size_t index = id - first_id_;
  const Descriptor& listener = listener_.sockets[index];
  for (int i = 0; i < kConnectionsAtOnce; ++i) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    Descriptor socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      const PeerAddress peer = PeerAddressOf(address);
      const bool for_admin = index + listener_.admin_sockets >= listener_.sockets.size();
      admit(std::move(socket), peer, {for_admin, peer.is_unix ? 0 : index});
    } else if (errno == EAGAIN) {
      return 0;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return OnFailure(listener, errno);
    }
  }
  return 0;
}

// Without a descriptor a connection can neither be taken nor refused, and the listening socket
// would report it again and again. The spare one lets it be refused.
int Acceptor::OnFailure(const Descriptor& listener, int error) {
  if (error == EINVAL) return SetListening(false), 0;  // Stop() has ended the listening.
  if (error == EMFILE && spare_.valid()) {
    spare_.Reset();
    Descriptor refused(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    refused.Reset();
    spare_.Reset(SpareDescriptor());
    if (spare_.valid()) return error;
  }
  if (!spare_.valid()) spare_.Reset(SpareDescriptor());
  if (paused()) return error;
  SetListening(false);
  resume_at_ = std::chrono::steady_clock::now() + kPause;
  return error;
}

}  // namespace normd

#include "server/http/connection_end.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

namespace normd {
namespace {

// Pauses double up to this one, so that a thousand clients that take their time cost little.
constexpr Duration kLongestPause = std::chrono::milliseconds(320);
// As many of a client's bytes are discarded at most.
constexpr std::size_t kMostDiscarded = std::size_t{4} << 20;

}  // namespace

std::int64_t UndeliveredBytes(int socket) {
  int bytes = 0;
  if (ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes == 0) return 0;
  tcp_info info{};
  socklen_t size = sizeof(info);
  const bool is_gone =
      getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_CLOSE;
  return is_gone ? 0 : bytes;
}

void ConnectionEnd::Cancel() {
  socket_ = -1;
  pause_.cancel();
}

void ConnectionEnd::EndSending(const SharedDone& done) {
  shutdown(socket_, SHUT_WR);
  Look(done);
}

void ConnectionEnd::Look(const SharedDone& done) {
  const TimePoint now = std::chrono::steady_clock::now();
  const bool client_ended = Discard();
  if (!delivered_ && UndeliveredBytes(socket_) == 0) {
    delivered_ = true;
    deadline_ = std::min(deadline_, now + kLinger);
  }
  if ((delivered_ && client_ended) || now >= deadline_ || discarded_ > kMostDiscarded) {
    return Finish(done, delivered_);
  }
  try {
    LookLater(now, client_ended, done);
  } catch (const std::exception&) {
    Finish(done, delivered_);  // No memory to wait.
  }
}

void ConnectionEnd::LookLater(TimePoint now, bool client_ended, const SharedDone& done) {
  // Nothing tells of an acknowledgement, so there are looks in between.
  pause_.expires_at(std::min(now + pause_length_, deadline_));
  pause_length_ = std::min(2 * pause_length_, kLongestPause);
  pause_.async_wait(Wake{*this, /*by_bytes=*/false, done});
  if (client_ended || awaits_bytes_) return;
  awaits_bytes_ = true;
  await_bytes_(Wake{*this, /*by_bytes=*/true, done});
}

void ConnectionEnd::Finish(const SharedDone& done, bool delivered) {
  Cancel();
  (*done)(delivered);
}

// Whether the client has ended its side.
bool ConnectionEnd::Discard() {
  std::array<char, 16384> bytes;
  while (discarded_ <= kMostDiscarded) {
    const ssize_t count = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return count == 0 || errno != EAGAIN;
    discarded_ += static_cast<std::size_t>(count);
  }
  return false;
}

}  // namespace normd

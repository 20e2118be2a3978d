#include "server/net/connection_opening.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "server/net/socket_calls.h"
#include "server/net/tls_opening.h"

namespace normd {
namespace {

// Like recv, except for interruptions; leaves the bytes in the socket.
ssize_t Peek(int socket, char* buffer, std::size_t bytes) {
  ssize_t there = 0;
  do {
    there = recv(socket, buffer, bytes, MSG_PEEK | MSG_DONTWAIT);
  } while (there < 0 && errno == EINTR);
  return there;
}

}  // namespace

ConnectionOpening::Step ConnectionOpening::Read(int socket) {
  return rules_.min_tls_version ? ReadHello(socket) : ReadHttp2(socket);
}

ConnectionOpening::Step ConnectionOpening::Refuse(int socket, ConnectionEnding ending,
                                                  const std::string& reply, std::string error) {
  Send(socket, reply);
  char unread[kMaxHelloBytes];  // Unread bytes would turn the reply into a reset.
  (void)!recv(socket, unread, sizeof(unread), MSG_DONTWAIT);
  ending_ = ending;
  error_ = std::move(error);
  return Step::kRefused;
}

ConnectionOpening::Step ConnectionOpening::ReadHello(int socket) {
  char buffer[kMaxHelloBytes];
  const ssize_t there = Peek(socket, buffer, sizeof(buffer));
  if (there < 0 && errno == EAGAIN) return Step::kMore;
  if (there <= 0) return Step::kLeft;
  const TlsOpening hello =
      JudgeTlsOpening({buffer, static_cast<std::size_t>(there)}, *rules_.min_tls_version);
  switch (hello.state) {
    case TlsOpening::State::kIncomplete: return Step::kMore;
    case TlsOpening::State::kHello: return Step::kDone;
    case TlsOpening::State::kOldVersion:
      return Refuse(socket, ConnectionEnding::kOldTls, TlsRefusal(hello.state), hello.error);
    default: return Refuse(socket, ConnectionEnding::kNoTls, TlsRefusal(hello.state), hello.error);
  }
}

// Reads the processed bytes, until nothing more is there or the acknowledgement is next.
ConnectionOpening::Step ConnectionOpening::ReadHttp2(int socket) {
  char buffer[16384];
  for (;;) {
    const ssize_t there = Peek(socket, buffer, sizeof(buffer));
    if (there < 0 && errno == EAGAIN) return Step::kMore;
    if (there <= 0) return Step::kLeft;
    const std::size_t taken = http2_.Take({buffer, static_cast<std::size_t>(there)});
    if (taken > 0) {
      first_bytes_.append(buffer, taken);
      (void)!recv(socket, buffer, taken, MSG_DONTWAIT);
    }
    const Http2Opening::State state = http2_.state();
    if (state == Http2Opening::State::kAcknowledged) return Step::kDone;
    if (state != Http2Opening::State::kPreface && state != Http2Opening::State::kSettings) {
      return Refuse(socket, ConnectionEnding::kNoHttp2, Http2Refusal(state), http2_.error());
    }
    if (state == Http2Opening::State::kSettings && !greeted_) {
      greeted_ = true;
      Send(socket, rules_.settings);
    }
    // A part of a frame's head, not cut by the buffer's end: no event comes again for bytes that
    // are already there.
    if (taken == 0) return Step::kMore;
  }
}

}  // namespace normd

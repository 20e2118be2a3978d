// The opening of a client's connection, read from the socket.

#ifndef NORMD_SERVER_NET_CONNECTION_OPENING_H_
#define NORMD_SERVER_NET_CONNECTION_OPENING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "server/metrics/metrics.h"
#include "server/net/http2_opening.h"

namespace normd {

struct OpeningRules {
  // If set, connections begin with TLS, of this version or a newer one (kTls12, kTls13).
  std::optional<std::uint16_t> min_tls_version;
  std::string settings;  // The server's SETTINGS frame; not sent with TLS.
};

// Reads no more than it has judged: without TLS up to the client's acknowledgement of the settings,
// which stays unread; with TLS nothing, because the new owner reads the hello. Not thread-safe.
class ConnectionOpening {
 public:
  enum class Step {
    kMore,     // More has to arrive.
    kDone,     // The connection may be handed on.
    kLeft,     // The client has left: no abuse, ports are probed like this.
    kRefused,  // The client has had its reply; ending() and error() have the reason.
  };

  // `rules` outlive it.
  explicit ConnectionOpening(const OpeningRules& rules)
      : rules_(rules), http2_(Http2OpeningLimits()) {}

  // Reads the available bytes. Does not block. Not to be called again after another step than
  // kMore.
  Step Read(int socket);

  ConnectionEnding ending() const { return ending_; }
  const std::string& error() const { return error_; }
  // The bytes that have been read, for the new owner.
  std::string TakeFirstBytes() { return std::exchange(first_bytes_, {}); }

 private:
  Step ReadHello(int socket);
  Step ReadHttp2(int socket);
  Step Refuse(int socket, ConnectionEnding ending, const std::string& reply, std::string error);

  const OpeningRules& rules_;
  Http2Opening http2_;
  bool greeted_ = false;
  std::string first_bytes_;
  ConnectionEnding ending_ = ConnectionEnding::kNoHttp2;
  std::string error_;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_CONNECTION_OPENING_H_

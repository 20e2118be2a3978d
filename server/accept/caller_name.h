// Whom a call counts against, as its transport names it.

#ifndef NORMD_SERVER_ACCEPT_CALLER_NAME_H_
#define NORMD_SERVER_ACCEPT_CALLER_NAME_H_

#include <string>

#include "absl/strings/string_view.h"
#include "server/batching/holders.h"

namespace normd {

// The connection is the other end's name as gRPC spells it: "ipv4:192.0.2.1:4711",
// "ipv6:%5B2001:db8::1%5D:4711" or "unix:". The peer is the address without the port; for IPv6 it
// is the network of 64 bits, in which one host can take any address that it likes.
class CallerName {
 public:
  explicit CallerName(std::string connection);

  CallerName(const CallerName&) = delete;
  CallerName& operator=(const CallerName&) = delete;

  const std::string& connection() const { return connection_; }
  // Views of this object.
  Caller caller() const { return {connection_, peer_.empty() ? address_ : peer_}; }

 private:
  std::string connection_;
  absl::string_view address_;  // Of connection_.
  std::string peer_;           // Of IPv6.
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_CALLER_NAME_H_

// The servers that a text names, and the addresses of their names.

#ifndef NORMD_CLIENT_FLEET_ADDRESSES_H_
#define NORMD_CLIENT_FLEET_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd::client {

// One server as the user wrote it.
struct ServerName {
  std::string host;  // Without brackets; empty for a unix socket.
  std::string port;
  std::string text;  // The whole, such as "unix:/run/normd.sock".

  friend bool operator==(const ServerName& a, const ServerName& b) { return a.text == b.text; }
};

// A server that can be called: `target` is in gRPC's form, `name` is the name in its certificate.
struct ServerAddress {
  std::string target;
  std::string name;

  friend bool operator==(const ServerAddress& a, const ServerAddress& b) {
    return a.target == b.target;
  }
};

// "host:port", "[::1]:port", "dns:///host:port" or "unix:/path"; commas separate several.
// InvalidArgument names the one that is invalid or comes twice.
absl::StatusOr<std::vector<ServerName>> ParseServers(absl::string_view text);

// Whether the form of the text asks for balancing: several servers, or "dns:".
bool NamesAFleet(absl::string_view text);

// Every address of every server, in the servers' order and sorted for each, without duplicates. A
// server whose name cannot be resolved is left out if another can be; if none can, NotFound with
// the system's message. Blocks as long as the system's resolver does.
absl::StatusOr<std::vector<ServerAddress>> ResolveServers(const std::vector<ServerName>& servers);

using Resolver =
    std::function<absl::StatusOr<std::vector<ServerAddress>>(const std::vector<ServerName>&)>;

// Whether resolving again can change the result: one of them is a name.
bool CanChange(const std::vector<ServerName>& servers);

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_ADDRESSES_H_

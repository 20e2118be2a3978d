// The servers that a text names, and the addresses that their names have.

#ifndef NORMD_CLIENT_FLEET_ADDRESSES_H_
#define NORMD_CLIENT_FLEET_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd::client {

// One server as somebody wrote it.
struct ServerName {
  std::string host;  // Without brackets; empty for a unix socket.
  std::string port;
  std::string text;  // The whole, such as "unix:/run/normd.sock".

  friend bool operator==(const ServerName& a, const ServerName& b) { return a.text == b.text; }
};

// A server that can be called: `target` is gRPC's, `name` what its certificate is for.
struct ServerAddress {
  std::string target;
  std::string name;

  friend bool operator==(const ServerAddress& a, const ServerAddress& b) {
    return a.target == b.target;
  }
};

// "host:port", "[::1]:port", "dns:///host:port" or "unix:/path", several with commas between.
// InvalidArgument names the one that is none of these, or that comes twice.
absl::StatusOr<std::vector<ServerName>> ParseServers(absl::string_view text);

// Whether the text asks for balancing by its form: several servers, or "dns:".
bool NamesAFleet(absl::string_view text);

// Every address of every server, in the servers' order and sorted for each, without doubles. A
// server whose name cannot be resolved is left out where another can; else NotFound, with what the
// system says. Blocks, as long as the system's resolver does.
absl::StatusOr<std::vector<ServerAddress>> ResolveServers(const std::vector<ServerName>& servers);

using Resolver =
    std::function<absl::StatusOr<std::vector<ServerAddress>>(const std::vector<ServerName>&)>;

// Whether resolving again can give anything else: one of them is a name.
bool CanChange(const std::vector<ServerName>& servers);

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_ADDRESSES_H_

#include "client/fleet/addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace normd::client {
namespace {

absl::Status NoServer(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "server: \"", text, "\", wanted an address with a port up to 65535, such as 127.0.0.1:8001"));
}

absl::StatusOr<ServerName> ParseServer(absl::string_view text) {
  ServerName server;
  server.text = std::string(text);
  if (absl::StartsWith(text, "unix:")) return server;
  absl::string_view rest = absl::StripPrefix(text, "dns:");
  if (absl::ConsumePrefix(&rest, "//")) {
    const std::size_t slash = rest.find('/');  // An authority, which only gRPC's resolver can use.
    if (slash != 0) return NoServer(text);
    rest.remove_prefix(1);
  }
  const std::size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return NoServer(text);
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return NoServer(text);
  std::uint32_t port = 0;
  if (host.empty() || !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    return NoServer(text);
  }
  server.host = std::string(host);
  server.port = absl::StrCat(port);
  return server;
}

bool IsNumeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string TargetOf(const sockaddr* address, const std::string& port) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", port);
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", port);
}

absl::StatusOr<std::vector<ServerAddress>> Resolve(const ServerName& server) {
  if (server.host.empty()) return std::vector<ServerAddress>{{server.text, ""}};
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  if (IsNumeric(server.host)) hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrCat("server: \"", server.text, "\" has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::vector<ServerAddress> found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    found.push_back({TargetOf(one->ai_addr, server.port), server.host});
  }
  // Resolvers rotate the order from one response to the next.
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.target < b.target; });
  return found;
}

}  // namespace

absl::StatusOr<std::vector<ServerName>> ParseServers(absl::string_view text) {
  std::vector<ServerName> servers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<ServerName> server = ParseServer(part);
    if (!server.ok()) return server.status();
    if (std::find(servers.begin(), servers.end(), *server) != servers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("server: \"", part, "\" comes twice, wanted it once"));
    }
    servers.push_back(*std::move(server));
  }
  return servers;
}

bool NamesAFleet(absl::string_view text) {
  return absl::StrContains(text, ',') || absl::StartsWith(text, "dns:");
}

absl::StatusOr<std::vector<ServerAddress>> ResolveServers(const std::vector<ServerName>& servers) {
  std::vector<ServerAddress> all;
  absl::Status failure;
  for (const ServerName& server : servers) {
    const absl::StatusOr<std::vector<ServerAddress>> some = Resolve(server);
    if (!some.ok()) {
      failure.Update(some.status());
      continue;
    }
    for (const ServerAddress& one : *some) {
      if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    }
  }
  if (!all.empty()) return all;
  return failure.ok() ? absl::NotFoundError("server: no addresses") : failure;
}

bool CanChange(const std::vector<ServerName>& servers) {
  return std::any_of(servers.begin(), servers.end(), [](const ServerName& server) {
    return !server.host.empty() && !IsNumeric(server.host);
  });
}

}  // namespace normd::client
